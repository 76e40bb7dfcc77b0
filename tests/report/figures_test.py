"""Figures of reports: what they show, and that nothing is cut or on top."""

from absl.testing import parameterized

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.report import contents, figures as figures_lib
from tests import figures
from tests.report import contents_test


def _series(lines, note=""):
  return contents.series("rate", lines, y="value", note=note)


def _run(name, useful=6.0):
  return contents.simulated(name, contents_test.outcome(useful))


class FiguresTest(parameterized.TestCase):

  def test_course(self):
    fig = figures_lib.draw_course(_run("a $b$"))
    speed, nodes, dollars, events = fig.axes
    data = speed.patches[0].get_data()
    self.assertEqual(list(data.values), [80.0, 0.0, 60.0])
    self.assertEqual(list(data.edges), [0, 1, 4000 / 3600, 2.5])
    self.assertEqual(list(nodes.patches[0].get_data().values), [8, 6, 6])
    self.assertLen(dollars.lines[0].get_ydata(), 4)
    self.assertEqual([label.get_text() for label in events.get_yticklabels()], ["checkpoint"])
    self.assertEqual([list(l.get_xdata()) for l in events.lines], [[1]])
    labels = [axes.get_ylabel() for axes in (speed, nodes, dollars)]
    self.assertEqual(labels, ["samples/s", "live nodes", "cost ($)"])
    self.assertEqual(events.get_xlabel(), "time (hours)")
    self.assertEmpty(figures.find_faults(fig))

  def test_losses(self):
    runs = []
    for name, steps in (("a", [4]), ("b $1$", [])):
      curve = [[i, float(i), 5.0 - i, 9.0, 4, None, 1.0] for i in range(1, 4)]
      recoveries = [{"step": step, "rung": "shadow", "train_secs": 1.0} for step in steps]
      runs.append(_run(name) | {"curve": curve, "recoveries": recoveries})
    fig = figures_lib.draw_losses(runs)
    lines = fig.axes[0].lines
    self.assertEqual([list(line.get_ydata()) for line in lines[::2]], [[4.0, 3.0, 2.0]] * 2)
    self.assertEqual(list(lines[1].get_xdata()), [4, 4])
    self.assertEmpty(figures.find_faults(fig))

  def test_bars_fill_the_whole(self):
    figure = figures_lib.draw_node_time([_run("a"), _run("b", 2.0)])
    (axes,) = figure.axes
    self.assertLen(axes.containers, len(account_lib.KINDS))
    for row in range(2):
      bars = [container[row] for container in axes.containers]
      self.assertAlmostEqual(sum(b.get_width() for b in bars), 100.0)
      self.assertAlmostEqual(bars[-1].get_x() + bars[-1].get_width(), 100.0)
    self.assertAlmostEqual(axes.containers[0][0].get_width(), 75.0)

  def test_values_are_labelled_in_order_and_never_below_0(self):
    lines = {"worse": [[0.1, 1.0, -8.0, 9.0]], "better": [[0.1, 2.0, 1.0, 9.0]]}
    (axes,) = figures_lib.draw_series(_series(lines)).axes
    labels = [text.get_text() for text in axes.texts]
    self.assertEqual(labels, ["better", "worse"])
    heights = [text.xyann[1] for text in axes.texts]
    self.assertGreater(*heights)
    for collection in axes.collections:
      for segment in collection.get_segments():
        self.assertGreaterEqual(segment[:, 1].min(), 0.0)

  @parameterized.parameters(1, 3, 12)
  def test_the_legend_of_node_time_is_whole(self, num_runs):
    names = [f"a_policy_with_a_long_name_{i}" for i in range(num_runs)]
    runs = [_run(n) for n in names]
    for run in runs:
      parts = dict.fromkeys(account_lib.KINDS, 0.5)
      run["time"] = run["time"] | {"parts": parts, "node_secs": sum(parts.values())}
    fig = figures_lib.draw_node_time(runs)
    self.assertEmpty(figures.find_faults(fig))
    (legend,) = fig.legends
    shown = [text.get_text() for text in legend.texts]
    self.assertEqual(shown, list(account_lib.KINDS))

  def test_the_legend_has_what_is_there(self):
    (legend,) = figures_lib.draw_node_time([_run("a", 6.0)]).legends
    self.assertEqual([t.get_text() for t in legend.texts], ["useful", "idle"])

  @parameterized.parameters(
      ([4.5, 4.45, 4.4, 4.2, 3.9, 3.9, 1.5, 1.4],),
      ([1.0, 1.0, 1.0],),
      ([5.0, 0.0],),
      ([0.01 * i for i in range(20)],),
      ([0.0] * 12,),
  )
  def test_no_line_strikes_a_label(self, values):
    lines = {
        f"policy_number_{i}": [[x, v, v - 0.1, v + 0.1] for x in (0.1, 1)]
        for i, v in enumerate(values)
    }
    fig = figures_lib.draw_series(_series(lines))
    self.assertEmpty(figures.find_faults(fig))

  @parameterized.parameters(((4.5, 4.2, 1.0), ["a", "b"]), ((4.5, 2.0, 1.0), None))
  def test_close_values_have_a_panel(self, values, close):
    lines = {p: [[0.1, v, None, None]] for p, v in zip("abc", values, strict=True)}
    fig = figures_lib.draw_series(_series(lines, "single runs"))
    self.assertLen(fig.axes, 2 if close else 1)
    self.assertEqual(fig.axes[0].get_title(loc="left"), "single runs")
    for axes in fig.axes:
      self.assertEmpty(axes.collections)  # No bars.
    if close:
      below = fig.axes[1]
      shares = [line.get_ydata()[0] for line in below.lines]
      self.assertEqual([round(s, 2) for s in shares], [100.0, 93.33])
      self.assertEqual(below.get_ylabel(), "share of the best (%)")

  @parameterized.parameters((0.5, "seconds"), (119, "seconds"), (120, "minutes"), (7200, "hours"))
  def test_unit(self, span_secs, unit):
    self.assertEqual(figures_lib.time_unit(span_secs).name, unit)
