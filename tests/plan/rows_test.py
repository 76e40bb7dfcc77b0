"""Rows of segments take as long as rows of stages."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.schedule import timeline as timeline_lib
from tests import layouts, profiles

_SEGMENTS = partition_lib.Partition(tuple(range(13)))


class SegmentsTest(parameterized.TestCase):

  @parameterized.product(num_stages=[1, 2, 3, 5], count=[1, 4, 9], schedule=["1f1b", "gpipe"])
  def test_span(self, num_stages, count, schedule):
    profile = layouts.make_profile(12)
    profile = dataclasses.replace(profile, dispatch_ms=0.0)
    plan = profiles.make_plan(
        profile,
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
