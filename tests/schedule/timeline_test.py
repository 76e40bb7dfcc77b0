from unittest import mock

from absl.testing import parameterized

from bamboo_jax.schedule import timeline as timeline_lib
from tests import layouts, schedules


class RenderGridTest(parameterized.TestCase):

  @parameterized.parameters(
      (
          *("012", 3, None),
          "node 0 F0 F1 F2 ............B0    ...B1    ...B2    ",
          "node 1 ...F0 F1 ......B0    F2 B1    ...B2    ......",
          "node 2 ......F0 B0    F1 B1    F2 B2    ............",
          "       45 columns are 15.00 ms, bubble 40.0 %",
      ),
      (
          *("01", 1, {1: 0}),
          "node 0 F0  RF0 ........B0      ",
          "node 1 ....F0  B0      ........",
          "       24 columns are 6.00 ms, bubble 41.7 %",
      ),
      (  # Stages are named on nodes that own several, or shadow several.
          *("002", 1, {2: 0}),
          "node 0 0F0 1F0 RF0 ........1B0     0B0     ",
          "node 2 ........F0  B0      ................",
          "       36 columns are 9.00 ms, bubble 44.4 %",
      ),
      (
          *("011", 1, {1: 0, 2: 0}),
          "node 0 F0   1RF0 2RF0 ....................B0        ",
          "node 1 .....1F0  2F0  2B0       1B0       ..........",
          "       45 columns are 9.00 ms, bubble 38.9 %",
      ),
  )
  def test_grid(self, owners, count, shadows, *want):
    timeline = schedules.make_timeline(layouts.nodes(owners), range(count), shadows=shadows)
    self.assertEqual(timeline_lib.render_grid(timeline).splitlines(), [*want])

  @mock.patch.object(timeline_lib, "_MAX_COLUMNS", 26)
  def test_labels_are_cut_where_there_is_no_room(self):
    self.assertEqual(
        timeline_lib.render_grid(schedules.make_timeline([10], range(6))),
        "node 10 FB FB FB FB FB FB \n" "        18 columns are 18.00 ms, bubble 0.0 %",
    )
