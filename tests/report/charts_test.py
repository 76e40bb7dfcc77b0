"""Figures of reports: what they show, and that nothing is cut or on top."""

from absl.testing import parameterized

from bamboo_jax.accounting import account as account_lib, ledger as ledger_lib
from bamboo_jax.report import charts, content
from tests import figures, profiles


def _course():
  return content.Course(
      secs=[0.0, 3600.0, 4000.0, 9000.0],
      samples_per_sec=[80.0, 0.0, 60.0],
      num_nodes=[8, 6, 6],
      usd=[0.0, 8.0, 8.6, 16.0],
      events=[
          content.RunEvent(3600.0, "2 nodes lost", "checkpoint"),
          content.RunEvent(5000.0, "1 node added"),
      ],
  )


def _run(name, useful, *, course=None, every=0.0):
  ledger = ledger_lib.Ledger(profiles.make_price(3.06, 0.918))
  activity = account_lib.NodeTime(useful=useful, idle=8 - useful)
  activity += account_lib.NodeTime(**dict.fromkeys(account_lib.KINDS, every))
  ledger.add(3600.0, activity, num_samples=3600.0)
  return content.ReportRun(name=name, account=ledger.account(), course=course)


def _value_report(curves):
  return content.Page(title="t", curves=curves, rate_name="rate", value_name="value")


class ChartsTest(parameterized.TestCase):

  def test_course(self):
    figure = charts.draw_course(_run("run", 6, course=_course()))
    speed, nodes, dollars, events = figure.axes
    band, means = (patch.get_data() for patch in speed.patches)
    # Whole bins of 37.5 s, but for those in which the rate changes.
    self.assertEqual((means.values[0], means.values[-1]), (80.0, 60.0))
    self.assertAlmostEqual(sum(means.values) * 37.5, 80 * 3600 + 60 * 5000, places=3)
    self.assertEqual(means.values[100], 0.0)
    self.assertEqual((band.baseline[106], band.values[106]), (0.0, 60.0))
    self.assertEqual(list(nodes.patches[0].get_data().edges), [0, 1, 4000 / 3600, 2.5])
    self.assertEqual(list(dollars.lines[0].get_ydata()), [0.0, 8.0, 8.6, 16.0])
    self.assertEqual(
        [label.get_text() for label in events.get_yticklabels()], ["no rung", "checkpoint"]
    )
    self.assertEqual([list(l.get_xdata()) for l in events.lines], [[5000 / 3600], [1]])

  def test_bars_fill_the_whole(self):
    figure = charts.draw_node_time([_run("a", 6.0), _run("b", 1.0)])
    (axes,) = figure.axes
    self.assertLen(axes.containers, len(account_lib.KINDS))
    for row in range(2):
      bars = [container[row] for container in axes.containers]
      self.assertAlmostEqual(sum(b.get_width() for b in bars), 100.0)
      self.assertAlmostEqual(bars[-1].get_x() + bars[-1].get_width(), 100.0)
    self.assertAlmostEqual(axes.containers[0][0].get_width(), 75.0)

  def test_values_are_labelled_in_order_and_never_below_0(self):
    curves = [
        content.Curve(policy=n, points=[content.Point(0.1, value, low, 9.0, 3)])
        for n, value, low in (("worse", 1.0, -8.0), ("better", 2.0, 1.0))
    ]
    (axes,) = charts.draw_value(_value_report(curves)).axes
    labels = [text.get_text() for text in axes.texts]
    self.assertEqual(labels, ["better", "worse"])
    heights = [text.xyann[1] for text in axes.texts]
    self.assertGreater(*heights)
    for collection in axes.collections:
      for segment in collection.get_segments():
        self.assertGreaterEqual(segment[:, 1].min(), 0.0)

  def test_the_bands_of_a_course_have_a_legend(self):
    fig = charts.draw_course(_run("a $b$", 6, course=_course()))
    speed, nodes, cost, _ = fig.axes
    self.assertEqual(
        [text.get_text() for text in speed.get_legend().texts],
        ["least to most within 37.5 s", "mean of these"],
    )
    labels = [axes.get_ylabel() for axes in (speed, nodes, cost)]
    self.assertEqual(labels, ["samples/s", "live nodes", "cost ($)"])
    self.assertEqual(fig.axes[-1].get_xlabel(), "time (hours)")
    self.assertEmpty(figures.find_faults(fig))

  @parameterized.parameters(1, 3, 12)
  def test_the_legend_of_node_time_is_whole(self, num_runs):
    names = [f"a_policy_with_a_long_name_{i}" for i in range(num_runs)]
    fig = charts.draw_node_time([_run(n, 0, every=0.5) for n in names])
    self.assertEmpty(figures.find_faults(fig))
    (legend,) = fig.legends
    shown = [text.get_text() for text in legend.texts]
    self.assertEqual(shown, list(account_lib.KINDS))

  def test_the_legend_has_what_is_there(self):
    (legend,) = charts.draw_node_time([_run("a", 6.0)]).legends
    self.assertEqual([t.get_text() for t in legend.texts], ["useful", "idle"])

  @parameterized.parameters(
      ([4.5, 4.45, 4.4, 4.2, 3.9, 3.9, 1.5, 1.4],),
      ([1.0, 1.0, 1.0],),
      ([5.0, 0.0],),
      ([0.01 * i for i in range(20)],),
      ([0.0] * 12,),
  )
  def test_no_line_strikes_a_label(self, values):
    curves = [
        content.Curve(
            policy=f"policy_number_{i}",
            points=[content.Point(r, v, v - 0.1, v + 0.1, 5) for r in (0.1, 1)],
        )
        for i, v in enumerate(values)
    ]
    fig = charts.draw_value(_value_report(curves))
    self.assertEmpty(figures.find_faults(fig))

  @parameterized.parameters(((4.5, 4.2, 1.0), ["a", "b"]), ((4.5, 2.0, 1.0), None))
  def test_close_values_have_a_panel(self, values, close):
    curves = [
        content.Curve(policy=p, points=[content.Point(0.1, v, None, None, 1)])
        for p, v in zip("abc", values, strict=True)
    ]
    fig = charts.draw_value(_value_report(curves))
    self.assertLen(fig.axes, 2 if close else 1)
    self.assertEqual(fig.axes[0].get_title(loc="left"), "single runs, which have no intervals")
    for axes in fig.axes:
      self.assertEmpty(axes.collections)  # No bars.
    if close:
      below = fig.axes[1]
      shares = [line.get_ydata()[0] for line in below.lines]
      self.assertEqual([round(s, 2) for s in shares], [100.0, 93.33])
      self.assertEqual(below.get_ylabel(), "share of the best (%)")

  def test_bars_are_explained(self):
    points = [content.Point(r, 2.0, 1.5, 2.5, n) for r, n in ((1, 4), (2, 5))]
    curves = [content.Curve(policy="a", points=points)]
    (axes,) = charts.draw_value(_value_report(curves)).axes
    self.assertEqual(
        axes.get_title(loc="left"), "means of 4 to 5 runs; bars: 95 % confidence intervals"
    )

  @parameterized.parameters((0.5, "seconds"), (119, "seconds"), (120, "minutes"), (7200, "hours"))
  def test_unit(self, span_secs, unit):
    self.assertEqual(charts.time_unit(span_secs).name, unit)
