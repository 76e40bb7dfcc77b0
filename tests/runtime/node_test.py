"""A paced node is as fast as its device, however long its thread takes."""

import threading
import time

from absl.testing import absltest
import jax
import numpy as np
import optax

from bamboo_jax.data import batches as batches_lib, source as source_lib
from bamboo_jax.models import zoo
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.schedule import channel as channel_lib, instruction as instruction_lib
from tests.runtime import engine_test as engines
from tests.runtime.wire import transport_test

_FORWARD_MS = 200.0  # Longer than a busy machine delays a thread.
_BACKWARD_MS = 5.0
_ACTIVATION = channel_lib.Channel("activations", (0, 1), (0,))
_GRAD = channel_lib.Channel("gradients", (1, 0), (0,))
Op = instruction_lib.Op
_CACHE = programs_lib.ProgramCache()


class PacedNodeTest(absltest.TestCase):

  def begin(self, *, forward_ms=_FORWARD_MS):
    """Starts a step of two microbatches on node 0 of two; the test is node 1."""
    sizes = dict(sequence_length=4, vocab_size=16)
    model = zoo.make_model(
        "paced", num_blocks=2, forward_ms=forward_ms, backward_ms=_BACKWARD_MS, **sizes
    )
    whole = spec_lib.StageSpec(model, 0, 2, model.batch_shapes(1), optax.sgd(0.1))
    mine, self.peer = transport_test.make_transports(self, 2)
    devices = {0: jax.devices()[0]}
    engine = engines.build(
        whole.cut([0, 1, 2]), [(0, 1)], devices=devices, cache=_CACHE, exchange=mine
    )
    compile_ahead.compile_all(engine, evaluate=False)
    engine.set_state(spec_lib.init_layers(whole))
    batches = batches_lib.Batches(
        source_lib.make_source("synthetic", **sizes), seed=0, num_microbatches=2, microbatch_size=1
    )
    feed = lambda microbatch, names: batches.microbatch(0, microbatch, names)
    engine.begin_step(0, feed, num_microbatches=2)
    (self.node,) = engine.nodes.values()
    self.grad = jax.numpy.ones(engine.specs[0].outputs.shape)
    engine.clock.catch_up()

  def run_one(self, op, microbatch=0):
    peer = 1 if op.name.startswith(("SEND", "RECV")) else None
    return self.node.run(instruction_lib.Instruction(0, op, microbatch, peer))

  def test_runs_ahead_of_its_device(self):
    self.begin()
    first = self.run_one(Op.FORWARD)
    self.assertAlmostEqual(first.end_secs - first.start_secs, _FORWARD_MS / 1e3)
    sent = self.run_one(Op.SEND_ACTIVATION)
    self.peer.send(0, str(_GRAD), [self.grad])
    received = self.run_one(Op.RECV_GRAD)
    last = self.run_one(Op.BACKWARD)
    self.assertLess(time.perf_counter(), first.end_secs)
    for transfer in (sent, received):
      self.assertEqual((transfer.start_secs, transfer.end_secs), (first.end_secs,) * 2)
    (value,) = self.peer.receive(0, str(_ACTIVATION))
    self.assertGreaterEqual(time.perf_counter(), first.end_secs)  # Not before it is computed.
    np.testing.assert_array_equal(value, sent.result)
    self.assertEqual(last.start_secs, first.end_secs)
    self.assertAlmostEqual(last.end_secs - last.start_secs, _BACKWARD_MS / 1e3)

  def test_a_pass_begins_once_its_input_has_come(self):
    self.begin()
    first = self.run_one(Op.FORWARD)
    came_secs = first.end_secs + 0.03
    paced = node_lib.Paced(self.grad, first.end_secs, came_secs)
    send = lambda: self.peer.send(0, str(_GRAD), [paced])
    thread = threading.Thread(target=send)
    thread.start()
    self.addCleanup(thread.join)
    received = self.run_one(Op.RECV_GRAD)
    self.assertNotIsInstance(received, node_lib.Paced)
    self.assertGreaterEqual(self.run_one(Op.BACKWARD).start_secs, came_secs)

  def test_a_slow_device_runs_one_pass_after_the_other(self):
    self.begin(forward_ms=0.0)
    self.node.slow_factor = 1e3
    first, second = self.run_one(Op.FORWARD), self.run_one(Op.FORWARD, 1)
    self.assertGreater(first.end_secs, time.perf_counter())
    self.assertEqual(second.start_secs, first.end_secs)
