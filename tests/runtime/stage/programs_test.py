"""A stage runs its units; a redundant pass keeps what a forward pass keeps."""

import dataclasses
from unittest import mock

from absl.testing import absltest, parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import sharding
from bamboo_jax.runtime import node as node_lib, places
from bamboo_jax.runtime.stage import (
    array_store as store_lib,
    programs as programs_lib,
    spec as spec_lib,
)
from bamboo_jax.schedule import holdings as holdings_lib, instruction as instruction_lib
from tests.runtime import engine_test as engines
from tests.runtime.spmd import pipelines as small

Op = instruction_lib.Op
_MICROBATCH = 1
MESH = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), sharding.AXES)


def bits(tree):
  return [np.asarray(a).tobytes() for a in jax.tree.leaves(tree)]


def memory_kinds(tree):
  return {a.sharding.memory_kind for a in jax.tree.leaves(tree)}


class Stage:
  """A node with some layers of a small GPT-2, in stage 1."""

  def __init__(self, first, last, *, residuals="host", device=None):
    self.spec = dataclasses.replace(engines.make_whole(), first=first, last=last)
    self.node = node_lib.Node(
        *(0, device or jax.devices()[1], [None, self.spec]),
        *(mock.Mock(), node_lib.Clock(), programs_lib.ProgramCache(), residuals),
    )
    self.node.load_programs(1)
    self.node.put_state(spec_lib.init_layers(self.spec))
    batch = engines.make_batches(1).microbatch(0, 0)
    feed = lambda m, keys: {k: batch[k] for k in keys}
    self.node.begin_step(3, feed, microbatches_per_share=2)
    rng = np.random.default_rng(0)
    random = lambda a: rng.standard_normal(a.shape).astype(a.dtype)
    put = lambda tree: jax.device_put(tree, places.of_data(self.node.device, tree))
    self.inputs = put(jax.tree.map(random, self.spec.inputs))
    self.grad = put(jax.tree.map(random, self.spec.outputs))

  def run(self, op):
    """Runs a pass on the same inputs; returns the outputs and what it keeps."""
    store, key = self.node.store, (1, _MICROBATCH)
    store.activations = {}
    if self.inputs is not None:
      store.activations[holdings_lib.input_of(key)] = self.inputs
    self.node.run(instruction_lib.Instruction(1, op, _MICROBATCH))
    return store.activations.get(key), store.saved[key]

  def backward(self):
    """Runs the backward pass of the last forward pass; returns its results."""
    store, key = self.node.store, (1, _MICROBATCH)
    store.accumulators, store.grads = {}, {}
    if self.grad is not None:
      store.grads[key] = self.grad
    self.node.run(instruction_lib.Instruction(1, Op.BACKWARD, _MICROBATCH))
    return bits((store.accumulators, store.grads))


class TraceTest(parameterized.TestCase):

  def test_what_is_traced_without_a_device_is_not_traced_again(self):
    cache, spec = programs_lib.ProgramCache(), engines.make_whole()
    names, device = ("forward", "backward", "redundant"), jax.devices()[1]
    for unit in spec.units[:2]:
      for name in names:
        cache.get(unit).trace(name)
    again, apply = AssertionError("traced again"), programs_lib.UnitPrograms._apply
    with mock.patch.object(programs_lib.UnitPrograms, "_apply", side_effect=again):
      for unit in spec.units[:2]:
        for name in names:
          cache.get(unit, device).compile(name, device)
      with self.assertRaisesRegex(AssertionError, "traced again"):
        cache.get(spec.units[0], device).compile("evaluate", device)
    self.assertIs(programs_lib.UnitPrograms._apply, apply)

  @parameterized.parameters(None, MESH)
  def test_calls_find_what_is_compiled(self, device):
    stage = Stage(1, 6, device=device)
    for _, programs in stage.node.units[1]:
      for name in ("forward", "backward", "redundant", "zeros", "cast"):
        programs.compile(name, stage.node.device)
    compiled = small.count_compilations()
    stage.run(Op.REDUNDANT_FORWARD)
    stage.backward()
    self.assertEmpty(compiled)
    for total in stage.node.store.accumulators.values():
      where = places.of_state(stage.node.device, total.grads, "gpt2")
      placed = lambda a, want: self.assertTrue(a.sharding.is_equivalent_to(want, a.ndim))
      jax.tree.map(placed, total.grads, where)


class CacheTest(absltest.TestCase):

  def test_drops_what_was_used_longest_ago(self):
    cache, made = programs_lib.ProgramCache(2), []
    for key in "abacab":
      self.assertEqual(cache.find(key, lambda key=key: made.append(key) or key), key)
    self.assertEqual(made, ["a", "b", "c", "b"])


class RedundantTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("middle", 1, 3),
      ("last_stage", 1, 6),
      ("the_loss_alone", 5, 6),
      ("on_the_device", 1, 3, "device"),
      ("last_stage_on_the_device", 1, 6, "device"),
  )
  def test_keeps_what_a_forward_pass_keeps(self, first, last, residuals="host"):
    stage = Stage(first, last, residuals=residuals)
    want = [bits(kept) for kept in stage.run(Op.FORWARD)]
    results = stage.backward()
    outputs, ahead = stage.run(Op.REDUNDANT_FORWARD)
    kind = "pinned_host" if residuals == "host" else "device"
    self.assertLessEqual(memory_kinds((outputs, ahead)), {kind})
    if first == 5:
      self.assertEmpty(jax.tree.leaves((outputs, ahead)))
    if stage.spec.is_last:
      self.assertIsNone(ahead[-1][1])
    else:
      self.assertEqual([bits(outputs), bits(ahead)], want)
    self.assertEqual(stage.backward(), results)

  def test_an_output_that_is_there_stays(self):
    stage = Stage(1, 3)
    outputs, _ = stage.run(Op.FORWARD)
    stage.node.run(instruction_lib.Instruction(1, Op.REDUNDANT_FORWARD, _MICROBATCH))
    store, key = stage.node.store, (1, _MICROBATCH)
    self.assertIs(store.activations[key], outputs)
    self.assertLessEqual(memory_kinds(store.saved[key]), {"pinned_host"})
    want = (holdings_lib.input_of(key), key), (), (key,), ()
    self.assertEqual(store.holdings(), holdings_lib.Holdings(*map(frozenset, want)))


class SentTest(parameterized.TestCase):

  @parameterized.parameters(
      # What is kept lies on the host; links may send that.
      (True, False, "device", {"pinned_host"}),
      (True, True, "pinned_host", {"pinned_host"}),
      (False, False, "device", set()),
  )
  def test_what_was_sent_is_kept_or_dropped(self, keep, sends_host, sent, left):
    store = store_lib.StepArrays(keep=keep, sends_host=sends_host)
    store.grads[0, 1] = jnp.arange(6.0)
    self.assertEqual(memory_kinds(store.send(store.grads, (0, 1))), {sent})
    self.assertEqual(memory_kinds(store.arrays()), left)


class KindsTest(parameterized.TestCase):

  def test_blocks_share_programs(self):
    kinds = [unit.kind for unit in engines.make_whole().units]
    self.assertLen(kinds, 4)
    self.assertLen(set(kinds), 3)
    self.assertEqual(kinds[1], kinds[2])
    self.assertLen(programs_lib.find_kinds([engines.make_whole()]), 3)

  def outputs(self, *, step=0, microbatch=0, index=0, **changes):
    """Returns the output of the embedding in training, with dropout."""
    (unit,) = dataclasses.replace(small.make_spec(), last=1, **changes).units
    state = spec_lib.take(unit, spec_lib.init_layers(unit))
    _, outputs, _ = programs_lib.UnitPrograms(unit).forward(
        programs_lib.make_token(),
        *(state.params, state.stats, None, small.microbatch(0, 0)),
        *map(np.uint32, (step, microbatch, index)),
    )
    return np.asarray(outputs)

  @parameterized.parameters(
      dict(step=1), dict(microbatch=1), dict(index=1), dict(prng="rbg"), dict(prng="unsafe_rbg")
  )
  def test_dropout_depends_on(self, **changes):
    plain = self.outputs()
    np.testing.assert_array_equal(self.outputs(), plain)
    self.assertTrue(np.any(self.outputs(**changes) != plain))
