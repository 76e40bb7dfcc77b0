"""A program keeps exact copies, and fails as a whole."""

import dataclasses
import functools
import itertools
import re

from absl.testing import absltest
import jax
import jax.extend
import numpy as np
import optax

from bamboo_jax.models import model as model_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.spmd import block_passes
from bamboo_jax.runtime.spmd import ledger as ledger_lib
from bamboo_jax.runtime.spmd import state as state_lib
from tests.runtime import engine_test as rows_test
from tests.runtime.spmd import engine_test as engines
from tests.train import step_test

CLIP_NORM = 0.3
SHAPE = (3, 4, 2)  # Stages, microbatches of a pipeline, pipelines.

# Where a gradient is 0 but for rounding, a small `eps` would make it count.
SPEC = engines.make_spec(optimizer=optax.adamw(1e-2, eps=1e-3))


@functools.cache
def compiled():
  """Returns an engine, compiled as in a run, and events of its compilation."""
  engines.initial_layers(SPEC)  # Compiles something, too.
  events = count_compilations()
  engine = engines.make_engine(
      *SHAPE,
      spec=SPEC,
      budget=0.0,
      replicas=True,
      clip_norm=CLIP_NORM,
  )
  engine.compile()
  return engine, tuple(events)


def make_engine():
  engine, _ = compiled()
  engine.set_state(engines.initial_layers(SPEC))
  return engine


def count_compilations():
  """Returns a list that grows with every program that XLA compiles."""
  events = []
  listener = lambda name, secs, **_: (
      events.append(name) if "backend_compile" in name else None
  )
  jax.monitoring.register_event_duration_secs_listener(listener)
  return events


@functools.cache
def run_rows(num_steps):
  """Returns the state and the results of the same steps by rows."""
  num_stages, num_microbatches, num_pipelines = SHAPE
  nodes = range(num_pipelines * num_stages)
  engine = engine_lib.Engine(
      [
          dataclasses.replace(SPEC, first=first, last=last)
          for first, last in itertools.pairwise(engines.BOUNDS[num_stages])
      ],
      owners=[nodes[i : i + num_stages] for i in nodes[::num_stages]],
      devices={node: jax.devices()[0] for node in nodes},
      num_shares=num_pipelines,
  )
  engine.set_state(engines.initial_layers(SPEC))
  timelines = rows_test.play(engine, num_microbatches=num_microbatches)
  steps = step_test.Steps(
      engine,
      timelines,
      num_microbatches=num_pipelines * num_microbatches,
      clip_norm=CLIP_NORM,
  )
  with engines.quick_compilation():
    results = [steps.run(step, engines.feed(step)) for step in range(num_steps)]
  steps.close()
  return engine.layer_states(), results


def residuals_of_blocks(layout, microbatch):
  """Returns what blocks keep in step 0, by stage and block; without a mesh."""
  passes = block_passes.BlockPasses(SPEC, layout)
  forward = jax.jit(passes._block_forward)
  model, layers = SPEC.model, engines.initial_layers(SPEC)
  batch = engines.microbatch(0, microbatch)
  key = model_lib.microbatch_key(SPEC.seed, 0, microbatch)
  value, _ = model_lib.apply_range(
      model,
      0,
      layout.blocks.first,
      {name: layer.params for name, layer in layers.items()},
      {name: layer.stats for name, layer in layers.items()},
      None,
      batch,
      key=key,
      train=True,
  )
  found = []
  for stage, count in enumerate(layout.counts):
    found.append([])
    for block in range(count):
      first = layout.layer(stage, block, 0)
      names = model.layer_names[first : first + layout.blocks.period]
      value, residuals, _ = forward(
          [layers[name] for name in names], value, batch, key, first
      )
      found[-1].append(residuals)
  return found


def find_scan(jaxpr):
  """Returns the body of the loop over ticks: the scan with transfers in it."""
  for eqn in jaxpr.eqns:
    for inner in jax.core.jaxprs_in_params(eqn.params):
      names = {e.primitive.name for e in inner.eqns}
      if eqn.primitive.name == "scan" and "ppermute" in names:
        return inner
      if (found := find_scan(inner)) is not None:
        return found
  return None


def what_it_takes(jaxpr, eqn):
  """Returns the equations that have to be run before one of them."""
  made_by = {var: e for e in jaxpr.eqns for var in e.outvars}
  needed, left = [], [eqn]
  while left:
    for var in left.pop().invars:
      if isinstance(var, jax.extend.core.Var) and var in made_by:
        before = made_by[var]
        if before not in needed:
          needed.append(before)
          left.append(before)
  return needed


class ProgramTest(absltest.TestCase):

  def test_computes_what_rows_compute(self):
    engine = make_engine()
    got = engines.run_steps(engine, 3)
    layers, want = run_rows(3)
    for a, b in zip(got, want, strict=True):
      np.testing.assert_allclose(a.loss, b.loss, rtol=1e-5)
      np.testing.assert_allclose(a.grad_norm, b.grad_norm, rtol=1e-5)
      self.assertEqual(a.weight, b.weight)
      self.assertGreater(a.grad_norm, CLIP_NORM)
    states = engine.layer_states(pipeline=1)
    self.assertCountEqual(states, layers)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
        states,
        layers,
    )

  def test_is_compiled_once(self):
    engine, events = compiled()
    self.assertLen(events, 1)
    events = count_compilations()
    engine.compile()
    make_engine()
    engines.run_steps(engine, 2)
    engine.layer_states()
    self.assertEmpty(events)

  def test_transfers_wait_for_all_passes_of_a_tick(self):
    engine, _ = compiled()
    tick = find_scan(engine._program.trace().jaxpr.jaxpr)
    passes = [e for e in tick.eqns if e.primitive.name == "while"]
    self.assertLen(passes, 3)  # Redundant, forward, backward.
    sends = [e for e in tick.eqns if e.primitive.name == "ppermute"]
    self.assertLen(sends, 2)  # Outputs and gradients.
    for send in sends:
      self.assertIn(passes[-1], what_it_takes(tick, send))

  def test_a_step_without_tokens_changes_nothing(self):
    engine = make_engine()
    before = engine.layer_states()

    def feed(index, keys):
      batch = engines.microbatch(0, index)
      batch["targets"] = np.full_like(batch["targets"], -1)
      return {key: batch[key] for key in keys}

    with np.errstate(invalid="ignore"):
      result = engine.step(0, feed)
    self.assertEqual(result.weight, 0.0)
    self.assertEmpty(engines.find_unequal(engine.layer_states(), before))
    self.assertEmpty(engines.find_unequal(engine.replica_states(), before))

  def test_does_not_call_the_host(self):
    text = make_engine()._compiled.as_text()
    for word in ("callback", "custom-call", "infeed", "outfeed", " send("):
      self.assertNotIn(word, text)
    self.assertIn("collective-permute", text)

  def test_buffers_are_not_copied(self):
    engine = make_engine()
    num_slots = engine._program.table.num_residual_slots
    # Where the program begins, one array of zeros is copied for several.
    text = engine._compiled.as_text().split("ENTRY")[0]
    for slots in (num_slots, SHAPE[1]):  # On the device, and on the host.
      for array in jax.tree.leaves(engine._program.kept(slots)):
        shape = re.escape(str(list(array.shape)).replace(" ", ""))
        self.assertNotEmpty(re.findall(rf"= \w+{shape}\S* \w+", text))
        self.assertEmpty(re.findall(rf"= \w+{shape}\S* copy\(", text))

  def test_takes_what_the_ledger_says(self):
    engine, _ = compiled()
    ledger = engine.ledger()
    held = (ledger.state, ledger.replica, ledger.batch, ledger.host_residuals)
    memory = engine._compiled.memory_analysis()
    step_bytes = 4
    self.assertEqual(memory.argument_size_in_bytes, sum(held) + step_bytes)
    self.assertEqual(memory.alias_size_in_bytes, ledger.host_residuals)


class RedundancyTest(absltest.TestCase):

  def test_residuals_are_those_of_the_owner(self):
    engine = make_engine()
    engines.run_steps(engine, 1)
    layout, table = engine.layout, engine._program.table
    num_stages, num_microbatches, num_pipelines = SHAPE
    compared = set()
    for pipeline, m in np.ndindex(num_pipelines, num_microbatches):
      want = residuals_of_blocks(layout, pipeline * num_microbatches + m)
      for stage, owned in enumerate(want):
        shadow = (stage - 1) % num_stages
        if m not in [tick[shadow].redundant for tick in table.ticks]:
          continue
        compared.add((pipeline, stage))
        device = engine._placement.mesh.devices[pipeline, shadow]
        for i, array in enumerate(engine._host.residuals):
          got = state_lib.read_local(array, device)[0, 0]
          for block, residuals in enumerate(owned):
            np.testing.assert_allclose(
                got[m * layout.max_count + block].astype(np.float32),
                np.asarray(residuals[i], np.float32),
                rtol=1e-4,
                atol=1e-6,
            )
    self.assertLen(compared, num_pipelines * num_stages)

  def test_residuals_lie_in_host_memory(self):
    engine = make_engine()
    engines.run_steps(engine, 1)
    kinds = {a.sharding.memory_kind for a in jax.tree.leaves(engine._host)}
    self.assertEqual(kinds, {"pinned_host"})
    inside = engine._compiled.as_text().split("ENTRY")[0]
    self.assertIn("S(5)", inside)  # Not only where the program ends.

  def test_residuals_hold_no_parameters(self):
    kept = make_engine()._program.kept(1).residuals
    params = jax.tree.leaves(engines.initial_layers(SPEC)["block_00.mlp"])
    large = {a.shape for a in params if a.ndim > 1}
    self.assertEmpty(large & {a.shape[1:] for a in kept})

  def test_replicas_are_exact(self):
    engine = make_engine()
    engines.run_steps(engine, 3)
    for pipeline in range(2):
      owned = engine.layer_states(pipeline)
      replicas = engine.replica_states(pipeline)
      self.assertEmpty(engines.find_unequal(replicas, owned))
      self.assertEmpty(engines.find_unequal(owned, engine.layer_states(0)))

  def test_replicas_made_of_the_state_are_exact(self):
    engine = engines.make_engine(2, replicas=True, refresh="state", spec=SPEC)
    with engines.quick_compilation():
      engine.compile()
    engines.run_steps(engine, 2)
    self.assertEmpty(
        engines.find_unequal(engine.replica_states(), engine.layer_states())
    )


class FailureTest(absltest.TestCase):

  def test_a_failed_step_leaves_the_state_before_it(self):
    engine = make_engine()
    engines.run_steps(engine, 1)
    before = engine.layer_states()
    compiled_program = engine._compiled

    def fail(*args):
      compiled_program(*args)
      raise RuntimeError("A peer has died.")

    engine._compiled = fail
    try:
      with self.assertRaisesRegex(RuntimeError, "has died"):
        engine.step(1, engines.feed(1))
    finally:
      engine._compiled = compiled_program
    self.assertEmpty(engines.find_unequal(engine.layer_states(), before))
    engine.step(1, engines.feed(1))
    after = engine.layer_states()
    engine.set_state(before)
    engine.step(1, engines.feed(1))
    self.assertEmpty(engines.find_unequal(engine.layer_states(), after))

  def test_state_without_lost_nodes(self):
    engine = make_engine()
    engines.run_steps(engine, 1)
    layers = engine.layer_states()
    alone = {(1, stage) for stage in range(3)}
    for stage in range(3):
      left = engine.surviving_states(alone | {(0, stage)})
      self.assertEmpty(engines.find_unequal(left, layers))
    left = engine.surviving_states(alone | {(0, 0), (0, 1)})
    self.assertNotIn("block_02.mlp", left)
    self.assertIn("block_03.mlp", left)

  def test_without_replicas_the_state_is_donated(self):
    engine = engines.make_engine(2)
    with engines.quick_compilation():
      engine.compile()
    ledger, memory = engine.ledger(), engine._compiled.memory_analysis()
    self.assertEqual(memory.alias_size_in_bytes, ledger.state)
    self.assertEqual((ledger.replica, ledger.next_state), (0, 0))
    given = jax.tree.leaves(engine._state)
    engines.run_steps(engine, 1)
    self.assertTrue(all(array.is_deleted() for array in given))


class LedgerTest(absltest.TestCase):

  def test_padding_of_equal_stages_is_that_of_ends(self):
    embed, head = count_params("embed"), count_params("head")
    # Plain gradient descent has no slots: a parameter and its gradient.
    ledger = engines.make_engine(2).ledger()
    self.assertEqual(ledger.padding, (2 * head, 2 * embed))
    # Each stage holds a replica of the other, but not of its sums.
    ledger = engines.make_engine(2, replicas=True).ledger()
    self.assertEqual(ledger.padding, (head, embed))

  def test_padding_of_unequal_stages(self):
    engine = engines.make_engine(3)
    kept = engine._program.kept(3)
    block = 2 * count_params("block_00.attention", "block_00.mlp")
    block += ledger_lib.num_bytes(kept.residuals) // 2
    block += ledger_lib.num_bytes(kept.inputs)
    embed, head = 2 * count_params("embed"), 2 * count_params("head")
    self.assertEqual(
        engine.ledger().padding, (head, embed + head + block, embed + block)
    )


def count_params(*names):
  """Returns the bytes of the parameters of layers."""
  layers = engines.initial_layers(engines.make_spec())
  return ledger_lib.num_bytes([layers[name].params for name in names])
