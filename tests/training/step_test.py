"""A step is a transaction: what it commits is one step of the optimizer."""

import functools
import math
import types

from absl.testing import parameterized
import jax
import numpy as np
import optax

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.base import types as base_types
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import slowness
from bamboo_jax.schedule import redundancy
from bamboo_jax.training import cohort as cohort_lib, step as step_lib
from bamboo_jax.training.setup import job as job_lib
from tests import layouts
from tests.runtime import engine_test as engines
from tests.training import deaths_test

_NAN, _INF = math.nan, math.inf


class StepTest(parameterized.TestCase):

  def begin(self, clip_norm=None):
    """Returns an engine of two pipelines with a state, and what runs its steps."""
    engine = engines.make_engine(2, 2)
    engine.set_state(engines.initial_layers())
    changes = {"optimizer.clip_norm": clip_norm, "redundancy.check_every_steps": 0}
    job = job_lib.Job(
        config=config_lib.Config().changed(changes),
        task=None,
        plan=types.SimpleNamespace(batch=types.SimpleNamespace(total_microbatches=4)),
        rules=None,
        engine=engine,
    )
    cohort = cohort_lib.LocalCohort(4)
    runner = step_lib.StepRunner(job, job_lib.Environment(cohort=cohort, workdir=None))
    self.addCleanup(runner.close)
    return engine, runner

  def plan_step(self, engine, runner):
    due = faults_lib.FaultsDue((), step=3, owners={}, hosted=())
    runner.begin(3, functools.partial(engines.make_batches(4).microbatch, 3), due)
    planned = engines.play(engine, num_microbatches=2)
    runner.plan(planned)
    return planned

  def run_step(self, clip_norm=None):
    """Returns the engine and the runner of a step that was committed, and its plan."""
    engine, runner = self.begin(clip_norm)
    planned = self.plan_step(engine, runner)
    runner.run_until_vote()
    runner.vote(step_lib.Vote(seen=1))
    runner.apply()
    return engine, runner, planned

  def test_what_ran_before_the_step_was_repeated_is_not_measured(self):
    engine, runner = self.begin()
    self.plan_step(engine, runner)
    runner.executor.compute(lambda node: None, runner._recorder)
    self.plan_step(engine, runner)
    runner.run_until_vote()
    record = runner.record
    self.assertGreater(min(one.start_secs for one in record.instructions), record.start_secs)

  def test_parameters_are_those_of_the_plain_model(self):
    """Whose gradient is clipped; `SumsTest` has the scale of one that is not."""
    clip_norm = 0.5
    engine, runner, _ = self.run_step(clip_norm)
    result = runner.finish(step_lib.Measured(), ())
    layers = engines.initial_layers()
    total, loss, weight = engines.make_plain().grads(
        layers, engines.make_batches(4).microbatch, step=3, microbatches=range(4)
    )
    grads = jax.tree.map(lambda g: np.float32(g / weight), total)
    tied = dict(grads, head={k: v for k, v in grads["head"].items()})
    for tie in engines.make_whole().model.layers[-1].ties:
      del tied["head"][tie.param]  # The owner's copy counts, once.
    norm = float(optax.tree.norm(tied))
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

  def test_what_is_measured(self):
    """Passes of rows and of segments; the plan is that of the whole step."""
    _, runner, planned = self.run_step()
    runner.plan(())  # After a death.
    begin_secs = runner.record.start_secs
    runner.executor.in_segments = [deaths_test.make_pass(0, 0, "F", 1e9, 2e9)]
    recovery = deaths_test.make_recovery(rung="reconfigure")
    recovery.ready_at_secs = begin_secs
    layout = layouts.lay_out((0, 1), (2, 3))
    measured = runner.measure(layout, [recovery])
    ran = runner.record.instructions
    self.assertEqual(measured.span_secs, max(m.end_secs for m in ran) - begin_secs)
    first_secs = min(m.start_secs for m in ran if not m.instruction.is_transfer)
    self.assertEqual(measured.owed, {2: (first_secs - begin_secs, 2e9 - begin_secs)})
    self.assertEqual(measured.passes.useful, 0.0)
    self.assertEqual({*measured.nodes}, {0, 1, 2, 3})
    secs = sum(runner.record.phase_secs[phase] for phase in ("ties", "reduce"))
    self.assertEqual(measured.sums_secs, {0: secs, 1: secs})
    self.assertEqual(runner.finish(measured, ()).planned, planned)

  def test_what_filled_waits(self):
    _, runner, _ = self.run_step()
    self.assertEmpty(runner.finish(step_lib.Measured(), ()).redundant)
    predicted, found = (redundancy.Effect(n, 0.5, 0.25, stretch=2.0 * n) for n in (1, 2))
    filler = runner.executor.filler
    filler.filling = types.SimpleNamespace(
        predicted=predicted, find_effect=lambda ran: found if ran else None
    )
    done = runner.finish(step_lib.Measured(ran={0: redundancy.Ran()}), ())
    planned = {f"planned_{k}": v for k, v in vars(predicted).items()}
    self.assertEqual(done.redundant, vars(found) | planned)
    self.assertEqual(filler.stretch, 4.0)
    runner.record = step_lib.StepRecord(steps=5)
    self.assertEmpty(runner.finish(step_lib.Measured(), ()).redundant)  # A node has died.

  def test_nodes_are_slow_from_one_step_to_another(self):
    engine, runner = self.begin()
    text = "1,0/1,,slow:2:3\n2,n3,,slow:4\n3,n9,,slow"
    faults = faults_lib.parse_faults(text, source="test")
    found, owners = [], {base_types.Place(0, 1): 1}
    for step in range(4):
      due = faults_lib.FaultsDue(faults, step=step, owners=owners, hosted=())
      runner.begin(step, lambda m, k: {}, due)
      found.append([node.slow_factor for node in engine.nodes.values()])
    self.assertEqual(found, [[1, 1, 1, 1], [1, 2, 1, 1], [1, 2, 1, 4], [1, 1, 1, 4]])


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


class SumsTest(parameterized.TestCase):
  """All members conclude the same from the sums of a step."""

  @parameterized.parameters(
      # Largest norm, then scale of the gradients; their norm is 5.
      (None, 0.5),
      (5.0, 0.5),
      (2.0, 0.2),
  )
  def test_what_members_said(self, clip_norm, scale):
    said = [
        step_lib.LocalSums({1: (36.0,)}, (8.0, 2.0)),
        step_lib.LocalSums({0: (28.0, 36.0)}, None),
        step_lib.LocalSums({0: (28.0, 36.0)}, None),
    ]
    got = step_lib.add_up(said, clip_norm=clip_norm)
    self.assertEqual(got, step_lib.StepSums(8.0, 2.0, scale, 5.0))
    self.assertEqual(got.mean_loss, 4.0)

  @parameterized.parameters((2.0, 0.5, (4.0, 2.0, 0.5)), (0.0, 0.0, (_NAN, _NAN, _NAN)))
  def test_means(self, weight, scale, means):
    """Not numbers if no token counts."""
    said = [step_lib.LocalSums({0: (1.0,)}, (8.0, weight, 4.0, 1.0))]
    got = step_lib.add_up(said, clip_norm=1.0)
    self.assertEqual((got.weight, got.scale), (weight, scale))
    self.assertEqual(str((got.mean_loss, *got.metrics)), str(means))

  @parameterized.parameters(
      # Loss, weight and norm of the gradient of step 60, skipped steps right before it, options,
      # and why it is skipped.
      (1.0, 2.0, 3.0, 0, {}, ""),
      (_NAN, 2.0, 3.0, 0, {}, "not finite: loss=nan grad_norm=3.0"),
      (1.0, 2.0, _INF, 0, {}, "not finite: loss=1.0 grad_norm=inf"),
      (_NAN, _NAN, _NAN, 0, {}, "not finite: loss=nan grad_norm=nan"),
      (_NAN, 2.0, _NAN, 0, {"on_nonfinite": "apply"}, ""),
      (_NAN, 0.0, _NAN, 0, {}, "no token of the batch counts"),
      (_NAN, 0.0, _NAN, 0, {"on_nonfinite": "stop"}, "no token of the batch counts"),
      (_NAN, 0.0, _NAN, 0, {"on_nonfinite": "apply"}, "no token of the batch counts"),
      (_NAN, 2.0, 1.0, 1, {"most_skipped_steps": 3}, "not finite: loss=nan grad_norm=1.0"),
      (_NAN, 2.0, 1.0, 9, {"most_skipped_steps": 0}, "not finite: loss=nan grad_norm=1.0"),
      (1.0, 2.0, 1.0, 2, {"most_skipped_steps": 3}, ""),
  )
  def test_judge(self, loss, weight, norm, num_skipped, options, skipped):
    self.assertEqual(self.judge(loss, weight, norm, num_skipped, options), skipped)

  def judge(self, loss, weight, norm, num_skipped, options):
    total = step_lib.StepSums(loss * weight, weight, 1.0, norm)
    options = config_lib.OptimizerSection(**options)
    return step_lib.judge(59, total, options, num_skipped=num_skipped)

  @parameterized.parameters(
      # The last of them ends the run.
      (_NAN, 2.0, 2, 3, "after step 57 .*=3., .* because not finite: loss=nan"),
      (1.0, 0.0, 2, 3, "after step 57 .*=3., .* because no token of the batch"),
      (_NAN, 2.0, 0, 1, "at step 60: all .*Checkpoints up to step 59 are from"),
      (_NAN, 2.0, 8, 2, "after step 51 .*=2., "),  # It was larger before.
  )
  def test_skipped_steps_in_a_row(self, loss, weight, num_skipped, most, message):
    with self.assertRaisesRegex(base.NonFiniteError, message):
      self.judge(loss, weight, 1.0, num_skipped, {"most_skipped_steps": most})

  @parameterized.parameters((8.0, "samples"), (6.0, "samples"), (9.0, "tokens"), (0.0, "tokens"))
  def test_unit(self, weight, unit):
    self.assertEqual(step_lib.StepSums(1.0, weight, 1.0, 1.0).unit(8), unit)

  def test_stop(self):
    with self.assertRaisesRegex(base.NonFiniteError, "Step 60 has loss=1.0 grad_norm=inf, so "):
      self.judge(1.0, 2.0, _INF, 0, {"on_nonfinite": "stop"})
