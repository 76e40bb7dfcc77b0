"""What a step leaves: state, its replicas, and in which memory they lie."""

import functools

from absl.testing import absltest, parameterized
import jax
import numpy as np
import optax

from bamboo_jax import base, config as config_lib
from bamboo_jax.runtime.phases import replicas, update
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.schedule import failover
from bamboo_jax.training import evaluation
from tests import plain
from tests.runtime import engine_test as engines
from tests.runtime.spmd import pipelines as small

CACHE = programs_lib.ProgramCache()
OWNERS, SHADOWS = (0, 1), {0: 1, 1: 0}
NUM_MICROBATCHES = 2


@functools.cache
def make_spec():
  return small.make_spec("tests.mlp_bn:make_mlp_bn", optimizer=optax.adam(1e-2))


def make_engine(**options):
  """Returns an engine of two nodes, each the shadow of the other."""
  spec = make_spec()
  replicas = config_lib.RedundancySection(mode="bubble", **options)
  specs = spec.cut([0, 4, spec.last])
  engine = engines.build(specs, [OWNERS], keep=True, replicas=replicas, cache=CACHE)
  engine.set_pipelines([failover.Roles(OWNERS, SHADOWS)], engine.lines)
  engine.set_state(spec_lib.init_layers(spec))
  return engine


def run_until_vote(engine):
  with small.quick_compilation():
    engines.run(engine, small.feed(0), num_microbatches=NUM_MICROBATCHES)
    update.refresh(engine, 1e-2)


def kinds(tree):
  return {array.sharding.memory_kind for array in jax.tree.leaves(tree)}


class PhasesTest(parameterized.TestCase):

  @parameterized.parameters(
      dict(refresh="gradient", slots="device"),
      dict(refresh="gradient", slots="host"),
      dict(refresh="state", slots="host"),
  )
  def test_replicas_are_exact_and_where_they_should_be(self, **options):
    engine = make_engine(**options)
    for step in range(2):  # The second starts from slots in host memory.
      del step
      run_until_vote(engine)
      replicas_of = [engine.nodes[node].layers_of(stage) for stage, node in SHADOWS.items()]
      replica_slots = [layer.slots for layers in replicas_of for layer in layers.values()]
      on_host = "pinned_host" if options["slots"] == "host" else "device"
      self.assertEqual(kinds(replica_slots), {on_host})
      with small.quick_compilation():
        update.apply(engine, 1e-2)
      replicas.compare([replicas.take_prints(engine, 0)])
      for number, node in engine.nodes.items():
        for stage in node.units:
          layers = node.layers_of(stage).values()
          self.assertEqual(kinds([layer.params for layer in layers]), {"device"})
          slots = kinds([layer.slots for layer in layers])
          self.assertEqual(slots, {on_host if SHADOWS[stage] == number else "device"})
    own = engine.nodes[0].layers_of(1)
    name, layer = next((n, l) for n, l in own.items() if jax.tree.leaves(l.params))
    params = jax.tree.map(np.array, layer.params)
    jax.tree.leaves(params)[0].flat[0] += 1
    engine.nodes[0].put_state({name: layer.replace(params=params)})
    with self.assertRaisesRegex(
        base.ReplicaMismatchError, rf"After step 4 .* '{name}' differ between nodes: 0 \| 1\."
    ):
      replicas.compare([replicas.take_prints(engine, 4)])

  def test_nothing_is_donated_before_the_commit_and_all_after(self):
    engine = make_engine()
    before = [(s.params, s.slots) for node in engine.nodes.values() for s in node.state.values()]
    run_until_vote(engine)
    arrays = jax.tree.leaves(before)
    self.assertFalse(any(array.is_deleted() for array in arrays))
    with small.quick_compilation():
      update.apply(engine, 1e-2)
    self.assertTrue(all(array.is_deleted() for array in arrays))

  def test_statistics_are_the_mean_of_all_microbatches(self):
    engine, layers = make_engine(), spec_lib.init_layers(make_spec())
    run_until_vote(engine)
    with small.quick_compilation():
      update.apply(engine, 1e-2)
    model = plain.PlainModel(make_spec())
    seen = [
        model.stats(layers, small.microbatch(0, m), step=0, microbatch=m)
        for m in range(NUM_MICROBATCHES)
    ]
    want = jax.tree.map(lambda *parts: sum(parts) / len(parts), *seen)
    got = {k: layer.stats for k, layer in engine.layer_states().items()}
    self.assertNotEmpty(jax.tree.leaves(got))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)

  def test_evaluation_uses_the_statistics_and_changes_nothing(self):
    engine, spec = make_engine(), make_spec()
    layers, batch = spec_lib.init_layers(spec), small.microbatch(3, 0)
    with small.quick_compilation():
      found = evaluation.evaluate(engine, [(0, batch)])
    params, stats = (
        {name: getattr(layer, part) for name, layer in layers.items()}
        for part in ("params", "stats")
    )
    want = plain.run_layers(spec.model, params, batch, stats=stats)
    np.testing.assert_allclose(found[0], [want.total, want.weight], rtol=1e-5)
    self.assertEmpty(small.find_unequal(engine.layer_states(), layers))


class NodesThatShareADeviceTest(absltest.TestCase):

  def test_one_that_dies_takes_nothing_of_the_others(self):
    engine = engines.make_engine.__wrapped__(2, 2, num_devices=2)
    engines.run_step(engine, num_microbatches=2)
    want = jax.tree.map(np.asarray, engines.grads_of(engine, 1))
    state = jax.tree.map(np.asarray, engine.layer_states(1))
    engine.kill(0)  # Nodes 0 and 2 share a device.
    jax.tree.map(np.testing.assert_array_equal, engines.grads_of(engine, 1), want)
    jax.tree.map(np.testing.assert_array_equal, engine.layer_states(1), state)
