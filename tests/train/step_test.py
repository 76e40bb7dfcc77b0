"""A step is a transaction: what it commits is one step of the optimizer."""

import functools
import time

from absl.testing import parameterized
import jax
import numpy as np
import optax

from bamboo_jax.config import surroundings
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime import executor as executor_lib
from bamboo_jax.train import step as step_lib
from bamboo_jax.train.members import local_cohort
from tests.runtime import engine_test as engines


class Steps:
  """Runs whole steps in which nobody dies."""

  def __init__(self, engine, clip_norm, on_nonfinite="skip"):
    num_nodes = sum(map(len, engine.owners))
    self._engine = engine
    self._timelines = engines.play(engine, num_microbatches=2)
    cohort = local_cohort.LocalCohort(num_nodes)
    self._step = step_lib.StepRunner(
        engine,
        executor_lib.RowsExecutor(engine, cohort),
        cohort,
        director=None,
        num_microbatches=2 * len(engine.owners),
        options=surroundings.OptimizerSection(clip_norm=clip_norm, on_nonfinite=on_nonfinite),
    )

  def run(self, step, feed):
    due = faults_lib.FaultsDue((), step=step, owners=self._engine.owners, hosted=())
    self._step.begin(step, feed, due)
    self._step.plan(self._timelines)
    self._step.run_until_vote()
    self._step.vote(step_lib.Vote(seen=1))
    self._step.apply()
    return self._step.result()


def bits_of(engine):
  """Returns the bytes of all states, of each pipeline."""
  return [
      [np.asarray(a).tobytes() for a in jax.tree.leaves(engine.layer_states(p))]
      for p in range(len(engine.owners))
  ]


class StepTest(parameterized.TestCase):

  def make_steps(self, *options):
    steps = Steps(*options)
    self.addCleanup(steps._step.close)
    return steps

  @parameterized.named_parameters(("unclipped", None), ("clipped", 0.5))
  def test_parameters_are_those_of_the_plain_model(self, clip_norm):
    engine = engines.make_engine(2, 2, 2)
    engine.set_state(engines.initial_layers())
    batches = engines.make_batches(4)
    steps = self.make_steps(engine, clip_norm)
    result = steps.run(3, lambda m, k: batches.microbatch(3, m, k))

    layers = engines.initial_layers()
    total, loss, weight = engines.make_plain().grads(
        layers, batches.microbatch, step=3, microbatches=range(4)
    )
    grads = jax.tree.map(lambda g: np.float32(g / weight), total)
    tied = dict(grads, head={k: v for k, v in grads["head"].items()})
    for tie in engines.make_whole().model.layers[-1].ties:
      del tied["head"][tie.param]  # The owner's copy counts, once.
    norm = float(optax.tree.norm(tied))
    if clip_norm is not None:
      self.assertGreater(norm, clip_norm)
      grads = jax.tree.map(lambda g: g * np.float32(clip_norm / norm), grads)
    self.assertAlmostEqual(result.sums.grad_norm, norm, places=5)
    self.assertAlmostEqual(result.sums.mean_loss, loss / weight, places=5)
    self.assertEqual(tuple(result.phase_secs), faults_lib.PHASES)

    optimizer = engines.make_whole().optimizer
    for pipeline in range(2):
      for name, got in engine.layer_states(pipeline).items():
        updates, _ = optimizer.update(grads[name], layers[name].slots, layers[name].params)
        want = optax.apply_updates(layers[name].params, updates)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=4e-6), got.params, want)

  def test_nodes_are_slow_from_one_step_to_another(self):
    engine = engines.make_engine(2, 2, 2)
    steps = self.make_steps(engine, None)
    text = "1,0/1,,slow:2:3\n2,n3,,slow:4\n3,n9,,slow"
    faults = faults_lib.parse_faults(text, source="test")
    found = []
    for step in range(4):
      due = faults_lib.FaultsDue(faults, step=step, owners=engine.owners, hosted=())
      steps._step.begin(step, lambda m, k: {}, due)
      found.append([node.slow_factor for node in engine.nodes.values()])
    self.assertEqual(found, [[1, 1, 1, 1], [1, 2, 1, 1], [1, 2, 1, 4], [1, 1, 1, 4]])

  def test_times_are_those_of_the_step(self):
    engine = engines.make_engine(1, 1, 2)
    engine.set_state(engines.initial_layers())
    batches = engines.make_batches(2)
    steps = self.make_steps(engine, None)
    for step in range(2):
      start_secs = time.perf_counter()
      steps.run(step, functools.partial(batches.microbatch, step))
      (times,) = steps._step.nodes.values()
      self.assertGreater(times.busy_secs, 0.0)
      took_secs = time.perf_counter() - start_secs
      self.assertLess(times.busy_secs + times.waited_secs, took_secs)

  def test_nothing_is_compiled_after_the_first_step(self):
    engine = engines.make_engine(2, 2, 2)
    batches = engines.make_batches(4)
    steps = self.make_steps(engine, 1.0)
    feed = lambda m, k: batches.microbatch(0, m, k)
    steps.run(0, feed)
    compiled = []
    listener = lambda name, secs, **_: compiled.append(name) if ("compile" in name) else None
    jax.monitoring.register_event_duration_secs_listener(listener)
    self.addCleanup(jax.monitoring.clear_event_listeners)
    steps.run(1, feed)
    steps.run(2, feed)
    self.assertEmpty(compiled)
    jax.jit(lambda a: a + 41)(np.ones(3))  # The listener does listen.
    self.assertNotEmpty(compiled)

  def test_a_step_that_is_run_again_before_its_commit_changes_nothing(self):
    engine = engines.make_engine(2, 2, 2)
    batches = engines.make_batches(4)
    feed = lambda m, k: batches.microbatch(0, m, k)
    states = []
    for interrupted in (False, True):
      steps = self.make_steps(engine, None)
      engine.set_state(engines.initial_layers())
      if interrupted:
        engines.run_step(engine, num_microbatches=2)  # Ends before the vote.
      steps.run(0, feed)
      states.append(jax.tree.map(np.asarray, engine.layer_states()))
    jax.tree.map(np.testing.assert_array_equal, *states)

  @parameterized.product(clip_norm=[None, 0.5], on_nonfinite=["skip", "apply"])
  def test_a_batch_without_tokens_changes_nothing(self, clip_norm, on_nonfinite):
    engine = engines.make_engine(2, 2, 2)
    engine.set_state(engines.initial_layers())
    batches, before = engines.make_batches(4), bits_of(engine)
    steps = self.make_steps(engine, clip_norm, on_nonfinite)

    def mask(microbatch, keys):
      arrays = dict(batches.microbatch(0, microbatch, keys))
      if "targets" in arrays:
        arrays["targets"] = -np.ones_like(arrays["targets"])
      return arrays

    result = steps.run(0, mask)
    self.assertEqual(result.sums.weight, 0.0)
    self.assertEqual(result.skipped, "no token of the batch counts")
    self.assertEqual(bits_of(engine), before)

  @parameterized.parameters((None, "skip", True), (0.5, "skip", True), (None, "apply", False))
  def test_a_gradient_that_is_not_finite(self, clip_norm, on_nonfinite, skips):
    engine = engines.make_engine(2, 2, 2)
    layers = dict(engines.initial_layers())
    bad = jax.tree.map(lambda a: a * np.nan, layers["head"].params)
    layers["head"] = layers["head"].replace(params=bad)
    engine.set_state(layers)
    batches, before = engines.make_batches(4), bits_of(engine)
    steps = self.make_steps(engine, clip_norm, on_nonfinite)
    result = steps.run(0, lambda m, k: batches.microbatch(0, m, k))
    self.assertEqual("loss=nan grad_norm=nan" in result.skipped, skips)
    self.assertEqual(bits_of(engine) == before, skips)
