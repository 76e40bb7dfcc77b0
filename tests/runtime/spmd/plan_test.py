import dataclasses

from absl.testing import absltest

from bamboo_jax import base, config as config_lib
from bamboo_jax.runtime.spmd import layout as layout_lib, plan as program, ticks
from tests import profiles


def make_plan(*, num_pipelines=1, num_microbatches=2):
  """Returns 2 stages: embed, 2 blocks | 2 blocks, head."""
  times = [(0.5, 1.0), *[(1.0, 2.0)] * 4, (0.25, 0.75)]
  layers = [
      profiles.make_layer(
          f"layer_{k}", forward_ms=forward_ms, backward_ms=backward_ms, residual_bytes=100
      )
      for k, (forward_ms, backward_ms) in enumerate(times)
  ]
  return profiles.make_plan(
      profiles.make_profile(layers, dispatch_ms=10.0, vote_ms=3.0),
      num_pipelines=num_pipelines,
      num_microbatches=num_microbatches,
      cuts=(1, 3, 5),
  )


_LAYOUT = layout_lib.BlockLayout(first=1, period=1, num_blocks=4, num_layers=6, num_stages=2)


def plan_program(plan, mode="none"):
  """Returns the program of such a plan."""
  return program.plan_program(plan, _LAYOUT, config_lib.RedundancySection(mode))


class ProgramTest(absltest.TestCase):

  def test_layers_are_charged_where_the_program_runs_them(self):
    plan = make_plan()
    self.assertEqual(plan.partition.bounds, (0, 3, 6))
    costs = program.program_costs(plan.partition, plan.profile, _LAYOUT)
    # The first stage runs the first layer again with the backward pass; the
    # last runs the last layer, forth and back, with the backward pass.
    self.assertEqual(costs.forward_ms, (2.5, 2.25 - 0.25))
    self.assertEqual(costs.backward_ms, (5.0 + 0.5, 4.75 + 0.25))
    self.assertEqual(costs.redundant_ms, costs.forward_ms)  # Without the loss.

  def test_program_of_all_pipelines(self):
    plan = make_plan(num_pipelines=2)
    made = plan_program(plan, "eager")
    self.assertEqual(made.plan.timeline.num_redundant, 4)
    self.assertEqual(made.plan.step_time.compute_ms, made.plan.timeline.span_ms)
    self.assertEqual(made.plan.step_time.vote_ms, plan.step_time.vote_ms)

  def test_passes_take_their_part_of_the_measured_time(self):
    made = plan_program(make_plan(), "eager")
    costs, span_ms = made.plan.costs, made.plan.timeline.span_ms
    got = made.passes(span_ms)
    useful = 2 * (sum(costs.forward_ms) + sum(costs.backward_ms))
    self.assertAlmostEqual(got.useful, useful)
    self.assertAlmostEqual(got.redundant, 2 * sum(costs.redundant_ms))
    self.assertAlmostEqual(made.passes(2 * span_ms).useful, 2 * useful)

  def test_a_program_that_does_not_fit(self):
    plan = make_plan(num_microbatches=4)
    most = max(m.total_bytes for m in plan_program(plan).plan.memory)
    fits = dataclasses.replace(plan, memory_limit_bytes=most)
    plan_program(fits)
    message = "needs .* MiB on a node, more than the limit.*executor='rows'"
    with self.assertRaisesRegex(base.InfeasibleError, message):
      plan_program(dataclasses.replace(fits, memory_limit_bytes=most - 1))

  def test_memory_is_that_of_the_program(self):
    layers = [
        profiles.make_layer(
            name,
            parameter_bytes=parameter_bytes,
            copy_bytes=10,
            residual_bytes=residual_bytes,
            working_bytes=working_bytes,
            activation_bytes=3,
        )
        for name, parameter_bytes, residual_bytes, working_bytes in (
            ("embed", 7, 1, 1000),
            *[(f"block_{k}", 5, 100, 1) for k in range(4)],
            ("head", 8, 400, 2000),
        )
    ]
    sizes = ticks.Sizes(
        num_ticks=2,
        num_microbatches=4,
        activations=2,
        gradients=1,
        residuals=3,
        spare=0,
        offloads=0,
        fetches=0,
        owned=1,
        keeps=False,
    )
    keeps = dict(keeps=True, offloads=1)
    # With redundant passes a node has slots for the inputs of its replica, too.
    ends = 1000 + 2000 + (2000 - 8)  # As much as a backward pass may recompute.
    for changes, copies, held, values, temporary in (
        ({}, 1, 1, 2 + 1, ends),
        (keeps, 2, 2, 2 * 2 + 1, ends + 203),
    ):
      with self.subTest(changes):
        changed = sizes._replace(**changes)
        want = dict(
            copy_bytes=held * 2 * 10 + 20,
            residual_bytes=copies * 3 * 203,
            transfer_bytes=copies * values * 3,
            working_bytes=temporary + copies * (2 * 5 + 15),
        )
        self.assertEqual(program.find_memory(layers, _LAYOUT, changed), want)
