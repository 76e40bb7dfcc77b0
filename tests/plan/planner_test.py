"""Plans of small pipelines, against numbers that can be worked out by hand."""

import dataclasses
import time

from absl.testing import absltest, parameterized

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import (
    cost_model,
    partition as partition_lib,
    predictor as predictor_lib,
    render,
)
from bamboo_jax.schedule import redundancy, timeline as timeline_lib
from tests import layouts, profiles

_MIB = 2**20
_SEGMENTS = partition_lib.Partition(tuple(range(13)))


def _layer(name, **changes):
  """Returns a layer that takes 1 + 2 ms and 1 MiB of everything."""
  default = dict(
      update_ms=0.5,
      parameter_bytes=_MIB,
      slot_bytes=2 * _MIB,
      activation_bytes=_MIB,
      residual_bytes=_MIB,
      norm_ms=0.25,
  )
  return profiles.make_layer(name, **(default | changes))


def _profile(layers, **changes):
  """Returns a profile whose links cost nothing but 0.5 ms per MiB."""
  links = dict(link_bytes_per_ms=2.0 * _MIB, reduce_bytes_per_ms=4.0 * _MIB)
  return profiles.make_profile(layers, **(links | changes))


_FOUR = _profile(
    [_layer("embed", slot_bytes=0), *map(_layer, ("a", "b", "head"))],
    link_latency_ms=0.125,
    reduce_latency_ms=0.0625,
    vote_ms=0.75,
    ties=(cost_model.TieCost("embed", "head", _MIB // 2),),
)


class StageCostsTest(absltest.TestCase):

  def test_sums_of_layers_and_a_dispatch(self):
    got = dataclasses.replace(_FOUR, dispatch_ms=0.25).stage_costs((0, 1, 4))
    self.assertEqual(got.forward_ms, (1.25, 3.25))
    self.assertEqual(got.backward_ms, (2.25, 6.25))
    self.assertEqual(got.transfer_ms, (0.25 + 0.125 + 0.5,))
    self.assertEqual(got.activation_bytes, (_MIB, _MIB))
    self.assertEqual(got.residual_bytes, (_MIB, 3 * _MIB))

  def test_refuses_another_models_partition(self):
    with self.assertRaisesRegex(ValueError, "3 layers, .* profile has 4"):
      _FOUR.stage_costs((0, 3))


class StepTimeTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Bounds, shares, pipelines, then ties, reduce, norm and update.
      ("one_node", (0, 4), 1, 1, 0.0, 0.0, 1.0, 2.0),
      ("two_stages", (0, 2, 4), 1, 1, 0.75, 0.0, 1.25, 1.0),
      ("the_largest_counts", (0, 1, 4), 1, 1, 0.75, 0.0, 1.5, 1.5),
      ("two_pipelines", (0, 2, 4), 2, 2, 0.75, 1.0625, 1.25, 1.0),
      ("two_shares", (0, 2, 4), 2, 1, 1.5, 0.5625, 1.25, 1.0),
      ("four_pipelines", (0, 2, 4), 4, 4, 0.75, 1.5625, 1.25, 1.0),
      ("two_shares_each", (0, 2, 4), 4, 2, 1.5, 1.5625, 1.25, 1.0),
  )
  def test_phases(self, bounds, shares, pipelines, ties, reduce, norm, update):
    predictor = predictor_lib.Predictor(_FOUR, num_microbatches=8, num_shares=shares)
    got = predictor.other_phases(partition_lib.Partition(bounds), num_pipelines=pipelines)
    want = predictor_lib.StepTime(0.0, ties, reduce, norm, 0.0, 0.75, update)
    self.assertEqual(got, want)
    self.assertEqual(got.total_ms, ties + reduce + norm + 0.75 + update)


class MakePlanTest(parameterized.TestCase):

  def test_redundancy(self):
    # Of each of four layers: parameters, slots, an accumulator, a replica with
    # slots, the gradient that it gets; nothing else counts.
    layers = [_layer(name, activation_bytes=0, residual_bytes=0) for name in "abcd"]
    request = dict(num_stages=4, protection=config_lib.RedundancySection(mode="bubble"))
    plan = profiles.make_plan(_profile(layers), **request, memory_limit_bytes=12 * _MIB)
    self.assertEqual([m.total_bytes for m in plan.memory], [8 * _MIB] * 4)
    _, worst = plan.worst_memory
    self.assertEqual(worst.total_bytes, (2 * 4 + 3 + 1) * _MIB)
    with self.assertRaisesRegex(
        base.InfeasibleError, "node . with stages .* after the death of node"
    ):
      profiles.make_plan(_profile(layers), **request, memory_limit_bytes=12 * _MIB - 1)

  def test_the_shares_of_another_pipeline_fit(self):
    layers = [_layer(name, activation_bytes=0, residual_bytes=0) for name in "abcd"]
    request = dict(num_stages=4, num_pipelines=2, num_shares=2, reroutes=True)
    plan = profiles.make_plan(_profile(layers), **request)
    most = max(m.total_bytes for m in plan.memory)
    request["memory_limit_bytes"] = most + _MIB  # One more accumulator.
    profiles.make_plan(_profile(layers), **request)
    request["memory_limit_bytes"] -= 1
    with self.assertRaisesRegex(
        base.InfeasibleError, "for another pipeline too after .*; or config.recovery.reroute=False."
    ):
      profiles.make_plan(_profile(layers), **request)
    profiles.make_plan(_profile(layers), **request | {"reroutes": False})

  @parameterized.parameters(
      (1e9, None, "device"),
      (1e9, 2**30, "device"),
      # Eight passes of the other stage do not fit; copies take 2 MiB / rate.
      (2.0**20, 15 * 2**20, "host"),
      (None, None, "host"),  # As measured.
  )
  def test_where_residuals_wait(self, rate, limit, want):
    layers = [
        profiles.make_layer(f"l{i}", forward_ms=1.0, residual_bytes=2**20, redundant_ms=7.0)
        for i in range(4)
    ]
    profile = profiles.make_profile(layers, host_bytes_per_ms=rate)
    plan = profiles.make_plan(profile, num_microbatches=8, memory_limit_bytes=limit)
    self.assertEqual(plan.residuals, want)
    redundant_ms = {"device": 2.0, "host": 14.0 if rate is None else 2.0 + 2.0}[want]
    self.assertEqual(plan.costs.redundant_ms, (redundant_ms,) * 2)
    predictor = predictor_lib.Predictor(profile, num_microbatches=8, memory_limit_bytes=limit)
    got = predictor.redundant_costs(plan.partition, 8)
    self.assertEqual(got.redundant_ms, plan.costs.redundant_ms)

  def test_gpt2_xl_on_64_stages_is_quick(self):
    # About 0.8 s of CPU alone; the best of three, and with room, as other tests
    # run beside it.
    layers = [_layer(f"layer_{i}", forward_ms=3 + i % 7) for i in range(98)]
    took_secs = []
    for _ in range(3):
      start = time.process_time()
      profiles.make_plan(
          _profile(layers), num_stages=64, num_microbatches=128, memory_limit_bytes=1000 * _MIB
      )
      took_secs.append(time.process_time() - start)
      if took_secs[-1] < 3.0:
        break
    self.assertLess(min(took_secs), 3.0)


class SegmentsTest(parameterized.TestCase):
  """Rows of segments take as long as rows of stages."""

  @parameterized.product(num_stages=[1, 2, 3, 5], count=[1, 4, 9], schedule=["1f1b", "gpipe"])
  def test_span(self, num_stages, count, schedule):
    plan = profiles.make_plan(
        layouts.make_profile(12),
        num_stages=num_stages,
        num_microbatches=count,
        schedule=schedule,
        protection=config_lib.RedundancySection("lazy"),
    )
    coarse, fine = plan.first().timeline, plan.cut([_SEGMENTS]).first().timeline
    self.assertLess(fine.span_ms, 1.001 * coarse.span_ms)
    sent = lambda t: sum(i.is_send for _, i in timeline_lib.linearize([t]))
    self.assertEqual(sent(fine), sent(coarse))

  def test_in_flight_is_that_of_the_stage(self):
    plan = profiles.make_plan(layouts.make_profile(12), num_stages=3, num_microbatches=8)
    uneven = partition_lib.Partition((0, 5, 12))
    (line,) = plan.cut([_SEGMENTS]).lines([(0, (0,) * 12, (0,))], [uneven])
    self.assertEqual(line.in_flight, (2,) * 5 + (1,) * 7)


class RenderTest(absltest.TestCase):

  def test_render_plan(self):
    plan = profiles.make_plan(_FOUR, num_pipelines=2, num_shares=4, memory_limit_bytes=64 * _MIB)
    self.assertEqual(render.render_plan(plan).splitlines(), _TEXT.splitlines())
    self.assertEqual((plan.owners, plan.batch.batch_size), (((0, 1), (2, 3)), 4))

  def test_redundancy(self):
    layers = _layer("a"), _layer("b", parameter_bytes=2 * _MIB), _layer("c")
    plan = profiles.make_plan(
        _profile(layers, link_bytes_per_ms=1e12), num_stages=3, num_microbatches=4
    )

    def describe(refresh):
      bubble = config_lib.RedundancySection("bubble", margin=0.0, refresh=refresh)
      rows = dataclasses.replace(plan, redundant=bubble).first()
      effect = redundancy.StepFilling([rows]).predicted
      return render.render_redundancy(dataclasses.replace(plan, redundant=bubble), rows, effect)

    text, text_of_state = describe("gradient"), describe("state")
    self.assertIn("replica of stage 1: 4.0 MiB, refreshed by 2.0 MiB a step", text)
    self.assertIn("replica of stage 1: 4.0 MiB, refreshed by 4.0 MiB a step", text_of_state)
    self.assertEqual(
        text.splitlines()[:2],
        [
            "redundancy: bubble, 12 redundant forward passes, predicted overhead 0.0 %, coverage"
            " 76.0 %",
            "node 2 holds the replica of stage 0: 3.0 MiB, refreshed by 1.0 MiB a step; keeps up"
            " to 12.0 MiB in host memory",
        ],
    )


_TEXT = """\
2 pipelines x 2 stages, 4 shares, schedule 1f1b, limit 64.0 MiB

stage  layers            F ms   B ms  bubble %  params  slots  grads  \
residuals  transfers  working  replica  refresh  total MiB
    0  embed .. a  (2)  2.000  4.000      37.7     2.0    2.0    7.0  \
      4.0        2.0      0.0      0.0      0.0       14.0
    1  b .. head   (2)  2.000  4.000      37.7     2.0    4.0    7.0  \
      2.0        2.0      0.0      0.0      0.0       15.0
most memory: node 1: 15.0 MiB (compute 14.0, reduce 15.0, refresh 13.0, apply 13.0)

predicted step: 25.31 ms = compute 19.25 + ties 1.50 + reduce 1.56 + norm 1.25 \
+ refresh 0.00 + vote 0.75 + update 1.00 (37.7 % bubble, from measured costs)
"""
