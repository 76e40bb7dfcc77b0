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
    for name, died in (("a", [2, 2, 3]), ("b $1$", [])):
      run = _run(name)
      run["curve"] = [[i, float(i), 5.0 - i, 9.0, 4, None, 1.0] for i in range(1, 4)]
      run["recoveries"] = [{"step": step, "rung": "shadow", "train_secs": 1.0} for step in died]
      runs.append(run | {"evaluations": [[3, 2.5], [4, None]]})
    runs[0]["events"] = [{"step": 1, "kind": "join", "text": "n4 joined"}]
    slots = [("n0", "0F0", "forward", 0.0, 2.0), ("n1", "1RF0", "redundant", 1.0, 9.0)]
    fig = figures_lib.draw_losses(runs, slots)
    step, axes = fig.axes
    self.assertEqual([text.get_text() for text in step.texts], ["0F0", "1RF0"])
    lines = axes.lines
    curves = [list(line.get_ydata()) for line in lines if line.get_label().endswith("train")]
    self.assertEqual(curves, [[4.0, 3.0, 2.0]] * 2)
    self.assertGreater(lines[0].get_linewidth(), 2 * lines[-2].get_linewidth())
    # Nodes died in steps 2 and 3, and joined in step 1.
    self.assertEqual(
        [line.get_xdata()[0] for line in lines if len(line.get_ydata()) == 2], [2, 3, 1]
    )
    self.assertEqual(
        [text.get_text() for text in axes.get_legend().get_texts()],
        ["a: train", "a: evaluation", "a: steps with deaths", "a: steps with joins"]
        + [r"b \$1\$: train", r"b \$1\$: evaluation"],
    )
    self.assertEmpty(figures.find_faults(fig))
    (axes,) = figures_lib.draw_losses(runs[:1]).axes
    self.assertEqual(axes.get_legend_handles_labels()[1][0], "train")

  @parameterized.parameters((2.9, 1), (3.1, 2))
  def test_a_step(self, factor, num_scales):
    """Parts that are not alike have scales of their own; names stand where they fit."""
    names = ["n2", "n0", "n1"]  # In the order of the plan.
    planned = [(name, "0F0", "forward", 0.0, 3.0) for name in names]
    measured = [(n, s, k, factor * a, factor * b) for n, s, k, a, b in planned[::-1]]
    measured.append(("n0", "0SA0>1", "transfer", 3.0, 3.0001))
    step = {"step": 7, "planned": planned, "measured": measured, "deaths": [["n0", 1.0]]}
    fig = figures_lib.draw_step(step)
    self.assertLen({axes.get_xlim() for axes in fig.axes}, num_scales)
    for axes, name in zip(fig.axes, ("planned", "measured"), strict=True):
      title = axes.get_title(loc="left")
      self.assertStartsWith(title, name)
      self.assertEqual("on its own scale" in title, num_scales == 2, title)
      self.assertEqual([text.get_text() for text in axes.get_yticklabels()], names)
      self.assertEqual([text.get_text() for text in axes.texts], ["0F0"] * 3)
    self.assertEqual(fig.get_suptitle(), "Step 7, in which n0 died: planned before that")
    (legend,) = fig.legends
    self.assertEqual([t.get_text().split()[0] for t in legend.texts], ["forward", "sent"])
    self.assertEmpty(figures.find_faults(fig))

  def test_bars_fill_the_whole(self):
    others = [_run(f"a_policy_with_a_long_name_{i}") for i in range(10)]
    figure = figures_lib.draw_node_time([_run("a"), _run("b", 2.0), *others])
    self.assertEmpty(figures.find_faults(figure))
    (axes,) = figure.axes
    self.assertLen(axes.containers, len(account_lib.KINDS))
    for row in range(2):
      bars = [container[row] for container in axes.containers]
      self.assertAlmostEqual(sum(b.get_width() for b in bars), 100.0)
      self.assertAlmostEqual(bars[-1].get_x() + bars[-1].get_width(), 100.0)
    self.assertAlmostEqual(axes.containers[0][0].get_width(), 75.0)
    (legend,) = figure.legends  # It has what is there.
    self.assertEqual([t.get_text() for t in legend.texts], ["useful", "idle"])

  def test_values_are_in_order_and_never_below_0(self):
    lines = {"worse": [[0.1, 1.0, -8.0, 9.0]], "better": [[0.1, 2.0, 1.0, 9.0]]}
    fig = figures_lib.draw_series(_series(lines))
    (axes,), (legend,) = fig.axes, fig.legends
    self.assertEqual([text.get_text() for text in legend.texts], ["better", "worse"])
    for collection in axes.collections:
      for segment in collection.get_segments():
        self.assertGreaterEqual(segment[:, 1].min(), 0.0)

  @parameterized.parameters(
      ([4.5, 4.45, 4.4, 4.2, 3.9, 3.9, 1.5, 1.4],),
      ([5.0, 0.0],),
      ([0.01 * i for i in range(20)],),
      ([0.0] * 12,),
  )
  def test_the_legend_of_a_series_is_whole(self, values):
    lines = {
        f"policy_number_{i}": [[x, v, v - 0.1, v + 0.1] for x in (0.1, 1)]
        for i, v in enumerate(values)
    }
    fig = figures_lib.draw_series(_series(lines))
    self.assertEmpty(figures.find_faults(fig))
    self.assertLen(fig.legends[0].texts, len(values))

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

  def test_unit(self):
    for secs, unit in ((0.5, "seconds"), (119, "seconds"), (120, "minutes"), (7200, "hours")):
      self.assertEqual(figures_lib.time_unit(secs)[1], unit)
