from absl.testing import parameterized

from bamboo_jax.schedule import lines as lines_lib
from bamboo_jax.schedule import render as grid_lib
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline as timeline_lib
from tests import schedules


def make_timeline(owners, num_microbatches, shadows=None):
  costs = schedules.uniform_costs(len(owners))
  bounds = scheduler.one_f_one_b_bounds(len(owners))
  lines = [lines_lib.Line(owners, range(num_microbatches), bounds)]
  schedule = scheduler.plan_rows(lines, costs=costs, shadows=shadows)
  return timeline_lib.play(schedule, lines, costs=costs)


class RenderGridTest(parameterized.TestCase):

  @parameterized.parameters(
      (
          ([0, 1, 2], 3),
          "node 0 F0 F1 F2 ............B0    ...B1    ...B2    ",
          "node 1 ...F0 F1 ......B0    F2 B1    ...B2    ......",
          "node 2 ......F0 B0    F1 B1    F2 B2    ............",
          "       45 columns are 15 ms, bubble 40.0 %",
      ),
      (
          ([0, 1], 1, {1: 0}),
          "node 0 F0  RF0 ........B0      ",
          "node 1 ....F0  B0      ........",
          "       24 columns are 6 ms, bubble 41.7 %",
      ),
      (  # Stages are named on nodes that own several, or shadow several.
          ([0, 0, 2], 1, {2: 0}),
          "node 0 0F0 1F0 RF0 ........1B0     0B0     ",
          "node 2 ........F0  B0      ................",
          "       36 columns are 9 ms, bubble 44.4 %",
      ),
      (
          ([0, 1, 1], 1, {1: 0, 2: 0}),
          "node 0 F0   1RF0 2RF0 ....................B0        ",
          "node 1 .....1F0  2F0  2B0       1B0       ..........",
          "       45 columns are 9 ms, bubble 38.9 %",
      ),
  )
  def test_grid(self, arguments, *want):
    got = grid_lib.render_grid(make_timeline(*arguments)).splitlines()
    self.assertEqual(got, list(want))

  def test_labels_are_cut_where_there_is_no_room(self):
    self.assertEqual(
        grid_lib.render_grid(make_timeline([10], 6), max_columns=26),
        "node 10 FB FB FB FB FB FB \n"
        "        18 columns are 18 ms, bubble 0.0 %",
    )

  def test_refuses_a_page_that_is_too_narrow(self):
    with self.assertRaisesRegex(ValueError, "at least 20, got 19"):
      grid_lib.render_grid(make_timeline([0], 1), max_columns=19)
