"""A step is a transaction: what it commits is one step of the optimizer."""

import functools
import time
import types

from absl.testing import parameterized
import jax
import numpy as np
import optax

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import slowness
from bamboo_jax.runtime import executor as executor_lib
from bamboo_jax.runtime.profile import recorder
from bamboo_jax.schedule import failover, instruction, redundancy, timeline as timeline_lib
from bamboo_jax.training import cohort as cohort_lib, step as step_lib
from bamboo_jax.training.setup import job as job_lib
from tests import layouts, members, schedules
from tests.runtime import engine_test as engines
from tests.training import deaths_test

_Op = instruction.Op


class Steps:
  """Runs whole steps in which nobody dies."""

  def __init__(self, engine, clip_norm, on_nonfinite="skip"):
    num_nodes = sum(map(len, engine.owners))
    self._engine = engine
    self._timelines = engines.play(engine, num_microbatches=2)
    cohort = cohort_lib.LocalCohort(num_nodes)
    job = types.SimpleNamespace(
        config=config_lib.Config().changed(
            {
                "optimizer.clip_norm": clip_norm,
                "optimizer.on_nonfinite": on_nonfinite,
                "redundancy.check_every_steps": 0,
            }
        ),
        task=None,
        plan=types.SimpleNamespace(
            batch=types.SimpleNamespace(total_microbatches=2 * len(engine.owners))
        ),
        engine=engine,
    )
    self._step = step_lib.StepRunner(job, job_lib.Environment(cohort=cohort, workdir=None))

  def run(self, step, feed):
    due = faults_lib.FaultsDue((), step=step, owners=self._engine.owners, hosted=())
    self._step.begin(step, feed, due)
    self._step.plan(self._timelines)
    self._step.run_until_vote()
    self._step.vote(step_lib.Vote(seen=1))
    self._step.apply()
    return self._step.result(step_lib.Measured(), ())


def bits_of(engine):
  """Returns the bytes of all states, of each pipeline."""
  return [
      [np.asarray(a).tobytes() for a in jax.tree.leaves(engine.layer_states(p))]
      for p in range(len(engine.owners))
  ]


class StepTest(parameterized.TestCase):

  def begin(self, *options, size=(2, 2, 2), layers=None):
    """Returns an engine with a state, its data, and what runs its steps."""
    engine = engines.make_engine(*size)
    engine.set_state(layers or engines.initial_layers())
    steps = Steps(engine, *options)
    self.addCleanup(steps._step.close)
    return engine, engines.make_batches(size[1] * 2), steps

  @parameterized.named_parameters(("unclipped", None), ("clipped", 0.5))
  def test_parameters_are_those_of_the_plain_model(self, clip_norm):
    engine, batches, steps = self.begin(clip_norm)
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
    engine, _, steps = self.begin(None)
    text = "1,0/1,,slow:2:3\n2,n3,,slow:4\n3,n9,,slow"
    faults = faults_lib.parse_faults(text, source="test")
    found = []
    for step in range(4):
      due = faults_lib.FaultsDue(faults, step=step, owners=engine.owners, hosted=())
      steps._step.begin(step, lambda m, k: {}, due)
      found.append([node.slow_factor for node in engine.nodes.values()])
    self.assertEqual(found, [[1, 1, 1, 1], [1, 2, 1, 1], [1, 2, 1, 4], [1, 1, 1, 4]])

  def test_times_are_those_of_the_step(self):
    _, batches, steps = self.begin(None, size=(1, 1, 2))
    for step in range(2):
      start_secs = time.perf_counter()
      steps.run(step, functools.partial(batches.microbatch, step))
      measured = steps._step.measure(layouts.make_layout((failover.Roles((0,)),), ((0,),)), ())
      (times,) = measured.nodes.values()
      self.assertGreater(times.busy_secs, 0.0)
      took_secs = time.perf_counter() - start_secs
      self.assertLess(times.busy_secs + times.waited_secs, took_secs)

  def test_nothing_is_compiled_after_the_first_step(self):
    _, batches, steps = self.begin(1.0)
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
    states = []
    for interrupted in (False, True):
      engine, batches, steps = self.begin(None)
      feed = functools.partial(batches.microbatch, 0)
      if interrupted:
        engines.run_step(engine, num_microbatches=2)  # Ends before the vote.
      steps.run(0, feed)
      states.append(jax.tree.map(np.asarray, engine.layer_states()))
    jax.tree.map(np.testing.assert_array_equal, *states)

  @parameterized.product(clip_norm=[None, 0.5], on_nonfinite=["skip", "apply"])
  def test_a_batch_without_tokens_changes_nothing(self, clip_norm, on_nonfinite):
    engine, batches, steps = self.begin(clip_norm, on_nonfinite)
    before = bits_of(engine)

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
    layers = dict(engines.initial_layers())
    bad = jax.tree.map(lambda a: a * np.nan, layers["head"].params)
    layers["head"] = layers["head"].replace(params=bad)
    engine, batches, steps = self.begin(clip_norm, on_nonfinite, layers=layers)
    before = bits_of(engine)
    result = steps.run(0, lambda m, k: batches.microbatch(0, m, k))
    self.assertEqual("loss=nan grad_norm=nan" in result.skipped, skips)
    self.assertEqual(bits_of(engine) == before, skips)


class MeasuredTest(parameterized.TestCase):
  """What members measure is one value in a vote, and joined once."""

  def test_join(self):
    said = [
        step_lib.Measured(
            account_lib.NodeTime(useful=1.0 + n),
            span_secs=2.0 + n,
            sums_secs={0: 1.0 - n / 2, n + 1: 3.0},
            owed={2: (0.5 + n, 1.5 + n)} if n < 2 else {},
            nodes={n: slowness.NodeStep("0F*4", 0.1, 0.2)},
        )
        for n in (1, 0, 2)
    ]
    got = step_lib.join(said)
    self.assertEqual((got.passes.useful, got.span_secs), (6.0, 4.0))
    self.assertEqual(got.sums_secs, {0: 0.0, 1: 3.0, 2: 3.0, 3: 3.0})
    self.assertEqual(got.owed, {2: (0.5, 2.5)})
    self.assertEqual({*got.nodes}, {0, 1, 2})
    self.assertEqual(step_lib.join([]), step_lib.Measured())
    self.assertEqual(step_lib.join([got]), got)

  def make_step(self, in_segments=(), **facts):
    """Returns the runner of a step; what it does not measure is left out."""
    step = object.__new__(step_lib.StepRunner)
    executor = types.SimpleNamespace(
        filler=executor_lib.Filler(),
        in_segments=in_segments,
        planned_passes=lambda secs: account_lib.NodeTime(),
    )
    vars(step).update(
        executor=executor,
        start_secs=9.0,
        idle_secs=0.0,
        _step=1,
        _sums=None,
        _skipped="",
        _planned=(),
        _phase_secs={"compute": 1.0, "ties": 0.0, "reduce": 0.0},
        _cohort=types.SimpleNamespace(hosted=frozenset({0}), view=members.view(2, 0, 2, 3)),
        _delays=types.SimpleNamespace(measure=lambda ran, is_alone: {}),
        _engine=types.SimpleNamespace(nodes={0: None}),
        **facts,
    )
    return step

  def test_owed_passes(self):
    forward = instruction.Instruction(1, _Op.FORWARD, 0)
    # Node 3 runs its own; the next one was still running at the death.
    passes = [
        recorder.MeasuredInstruction(node, forward, start, end)
        for node, start, end in (
            *((3, 10.5, 12.5), (0, 10.25, 11.75)),
            *((0, 11.0, 12.0), (0, 12.0, 12.5)),
        )
    ]
    agreement = deaths_test.make_agreement()
    recovery = deaths_test.make_recovery(step=22)
    step = self.make_step(passes[2:], instructions=passes[:2])  # A program's segment, and rows.
    owed = lambda *found: step.measure(agreement.layout, found).owed
    self.assertEqual(owed(recovery), {})  # Nothing is planned yet.
    recovery.ready_at_secs = 10.5
    self.assertEqual(owed(recovery), {2: (0.5, 2.0)})
    for rung, place, want in (
        ("reconfigure", "0/1", {2: (0.0, 2.0)}),  # All passes are repeated.
        ("reroute", "0/1", {2: (0.0, 2.0)}),  # Its place is that of another pipeline now.
        ("reroute", "2/1", {2: (0.0, 2.0)}),  # The other pipelines compute all of its shares.
        ("drop", "2/1", {}),
    ):
      recovery.rung, recovery.victims = rung, (place,)
      self.assertEqual(owed(recovery), want)
    self.assertEqual(owed(), {})
    self.assertEqual(step.measure(agreement.layout, ()).span_secs, 3.5)

  def test_what_filled_waits(self):
    step = self.make_step(instructions=[])
    filler = step.executor.filler
    row = [
        timeline_lib.Slot(0, instruction.Instruction(0, op, 0), at, at + 10.0)
        for op, at in ((_Op.FORWARD, 0.0), (_Op.BACKWARD, 10.0))
    ]
    bare = timeline_lib.Timeline(tuple(row), (0,), 20.0)
    rows = redundancy.PlannedRows(bare, {}, schedules.uniform_costs(1))
    filler.filling = redundancy.StepFilling([rows])
    ran = redundancy.Ran((10_000, 30_000), (redundancy.Filled(1, 1, 0, 20_000),), 120_000)
    done = step.result(step_lib.Measured(ran={0: ran}), ())
    want = redundancy.Effect(1, 0.5, 0.0, stretch=4.0)
    self.assertEqual((done.filled, done.predicted), (want, redundancy.Effect(0, 0.0, 0.0)))
    self.assertEqual(filler.stretch, 4.0)  # 80 of 120 ms, instead of 20.
    self.assertIsNone(step.result(step_lib.Measured(), ()).filled)  # A node has died.
