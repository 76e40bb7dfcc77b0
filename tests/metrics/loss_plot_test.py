"""The figure of losses: curves over each other, and a row for each event."""

from absl.testing import parameterized

from bamboo_jax.metrics import loss_plot, slot as slot_lib
from tests import figures

_LINES = (
    {"step": 0, "event": "start"},
    *({"step": i, "loss": 3.0 / i} for i in range(1, 9)),
    {"step": 4, "event": "eval", "loss": 1.1},
    {"step": 8, "event": "eval", "loss": 0.9},
    # Events have the number of the step in which they happened.
    {"step": 2, "event": "recovery", "nodes": [4, 5]},
    {"step": 6, "event": "recovery", "nodes": [1]},
    {"step": 5, "event": "join", "boot_secs": {"9": 2.0}},
    {"step": 5, "event": "layout", "owners": []},
)


class LossPlotTest(parameterized.TestCase):

  @parameterized.parameters((_LINES[:9], 1), ((), 1), (_LINES, 2))
  def test_events_have_a_panel(self, lines, num_panels):
    fig = loss_plot.draw_losses([loss_plot.read_losses(lines, name="a")])
    self.assertLen(fig.axes, num_panels)
    self.assertEqual(fig.axes[-1].get_xlabel(), "step")
    self.assertEmpty(figures.find_faults(fig))

  def test_one_run(self):
    losses = loss_plot.read_losses(_LINES, name="a")
    self.assertEqual(losses.evaluation, ((4, 8), (1.1, 0.9)))
    fig = loss_plot.draw_losses([losses])
    curves, marks = fig.axes
    self.assertEqual(curves.get_ylabel(), "loss (nats per token)")
    self.assertEqual(_legend(fig), ["train", "evaluation"])
    self.assertEqual(
        [label.get_text() for label in marks.get_yticklabels()], ["3 deaths", "1 join"]
    )
    self.assertEqual([list(line.get_xdata()) for line in marks.lines], [[2, 2, 6], [5]])
    # The steps with deaths are marked in the curves, too.
    upright = [l.get_xdata()[0] for l in curves.lines if l.get_ydata()[0] == 0]
    self.assertEqual(upright, [2, 6, 5])

  def test_two_runs_lie_over_each_other(self):
    plain = loss_plot.read_losses(_LINES[:11], name="no_deaths $x$")
    other = loss_plot.read_losses(_LINES, name="deaths")
    fig = loss_plot.draw_losses([plain, other])
    first, _, second, _ = fig.axes[0].lines[:4]
    self.assertEqual(list(first.get_ydata()), list(second.get_ydata()))
    self.assertGreater(first.get_linewidth(), 2 * second.get_linewidth())
    self.assertEqual(
        _legend(fig),
        [
            r"no_deaths \$x\$: train",
            r"no_deaths \$x\$: evaluation",
            "deaths: train",
            "deaths: evaluation",
        ],
    )
    labels = [l.get_text() for l in fig.axes[1].get_yticklabels()]
    self.assertEqual(labels, ["deaths: 3 deaths", "deaths: 1 join"])
    self.assertEmpty(figures.find_faults(fig))

  def test_a_planned_step_stands_above(self):
    slots = [
        slot_lib.TrackSlot("node 0", "0F0", 0.0, 20.0, "forward"),
        slot_lib.TrackSlot("node 0", "1RF0", 20.0, 40.0, "redundant"),
        slot_lib.TrackSlot("node 1", "1F0", 20.0, 60.0, "forward"),
    ]
    runs = [loss_plot.read_losses(_LINES, name=name) for name in ("a", "b")]
    fig = loss_plot.draw_losses(runs, planned=slots)
    step, curves, marks = fig.axes
    self.assertIn("in its bubbles", step.get_title(loc="left"))
    self.assertEqual(
        [text.get_text() for text in step.get_legend().get_texts()],
        ["forward pass", "redundant forward pass (1RF0: stage 1, microbatch 0)"],
    )
    self.assertEqual(curves.get_ylabel(), "loss (nats per token)")
    self.assertEqual(marks.get_xlim(), curves.get_xlim())
    self.assertEmpty(fig.legends)
    self.assertEmpty(figures.find_faults(fig))
    fig = loss_plot.draw_losses(runs, planned=slots[:1])
    self.assertEqual(fig.axes[0].get_title(loc="left"), "A step, as planned")


def _legend(fig):
  (legend,) = fig.legends
  return [text.get_text() for text in legend.texts]
