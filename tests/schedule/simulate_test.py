"""The rows of a step and their times, as data and as a picture; what a node holds after them."""

from unittest import mock

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.schedule import (
    checker,
    costs as costs_lib,
    holdings as holdings_lib,
    lines as lines_lib,
    rule as rule_lib,
    simulate as simulate_lib,
    timeline as timeline_lib,
)
from tests import layouts, samples, schedules

_BOUNDS = lines_lib.in_flight_limits
_LATE = costs_lib.StageCosts((9.0, 1.0), (1.0, 1.0), (0.0,))
_SLOW_LINKS = costs_lib.StageCosts((1.0,) * 3, (2.0,) * 3, (5.0,) * 2)


def plan(owners, microbatches, *, in_flight, costs=None, **options):
  line = lines_lib.Line(owners, microbatches, in_flight)
  costs = costs or schedules.uniform_costs(len(owners))
  timeline = simulate_lib.simulate([line], costs=costs, **options)
  checker.check(timeline.instructions, [line], **options)
  return timeline


class SimulateTest(parameterized.TestCase):

  @parameterized.parameters(("1F0", 2.0), ("1RF0", 0.25), ("0B3", 3.0), ("0SG0>0", 0.5))
  def test_time_of_an_instruction(self, text, want):
    costs = costs_lib.StageCosts((1.0, 2.0), (3.0, 4.0), (0.5,), redundant_ms=(0.5, 0.25))
    i = schedules.parse(text)
    self.assertEqual(costs.time_ms(i.transfer(1) if i.is_transfer else i), want)

  @parameterized.named_parameters(
      (
          *("gpipe", 3, 4, dict(in_flight=None)),
          "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3",
          "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3",
          "2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3",
      ),
      (
          *("gpipe_waits", 2, 3, dict(in_flight=None, costs=_LATE)),
          *("0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"),
      ),
      (
          *("slow_links", 3, 3, dict(in_flight=(2, 2, 2), costs=_SLOW_LINKS)),
          "0F0 0F1 0B0 0F2 0B1 0B2",
          "1F0 1F1 1B0 1B1 1F2 1B2",  # 1F2 comes after the gradient of 1B1.
          "2F0 2F1 2B0 2B1 2F2 2B2",
      ),
  )
  def test_passes(self, num_stages, num_microbatches, options, *want):
    schedule = plan(range(num_stages), range(num_microbatches), **options)
    self.assertEqual(schedules.passes(schedule), list(want))

  @parameterized.named_parameters(
      ("a_node_owns_both_stages", [0, 0], 2, {}, ["0F0 1F0 0F1 1B0 1F1 0B0 1B1 0B1"]),
      (
          *("the_next_backward_pass_may_exceed_the_bound", [0], 3),
          dict(residuals={(0, 1), (0, 2)}),
          ["0F0 0B0 0B1 0B2"],
      ),
      (
          *("a_lost_output_is_computed_again", [0, 1], 3),
          dict(residuals={(0, 1), (0, 2)}, accumulated={(0, 0)}),
          ["0F0 0F1 0B1 0F2 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"],
      ),
  )
  def test_passes_that_are_left(self, owners, num_microbatches, held, want):
    holdings = {0: holdings_lib.Holdings(**held)}
    bounds = [1] * len(owners) if held else _BOUNDS(2)
    schedule = plan(owners, range(num_microbatches), in_flight=bounds, holdings=holdings)
    self.assertEqual(schedules.passes(schedule), want)

  def test_times(self):
    costs = costs_lib.StageCosts((1.0, 2.0), (2.0, 4.0), (0.5,))
    timeline = plan(range(2), range(2), in_flight=_BOUNDS(2), costs=costs)
    want = {
        0: "0F0 0-1, 0SA0>1 1, 0F1 1-2, 0SA1>1 2, 0RG0<1 8, 0B0 8-10, 0RG1<1 14, 0B1 14-16",
        1: (
            "0RA0<0 1.5, 1F0 1.5-3.5, 1B0 3.5-7.5, 0SG0>0 7.5, 0RA1<0 7.5, 1F1 7.5-9.5,"
            " 1B1 9.5-13.5, 0SG1>0 13.5"
        ),
    }
    show = lambda s: f"{s.instruction} {s.start_ms:g}" + (
        "" if s.instruction.is_transfer else f"-{s.end_ms:g}"
    )
    self.assertEqual({n: ", ".join(map(show, row)) for n, row in timeline.rows.items()}, want)
    self.assertEqual(timeline.span_ms, 16.0)
    self.assertEqual(timeline.bubbles, {0: 1.0 - 6 / 16, 1: 1.0 - 12 / 16})
    self.assertAlmostEqual(timeline.mean_bubble, 1.0 - 9 / 16)
    # In the order of one thread that drives both; replayed, it is the same.
    self.assertEqual(
        " ".join(f"{node}:{i}" for node, i in timeline_lib.linearize([timeline])),
        "0:0F0 0:0SA0>1 0:0F1 1:0RA0<0 1:1F0 0:0SA1>1 1:1B0 1:0SG0>0 1:0RA1<0 1:1F1 0:0RG0<1"
        " 0:0B0 1:1B1 1:0SG1>0 0:0RG1<1 0:0B1",
    )
    self.assertEqual(rule_lib.replay(timeline.instructions, costs.time_ms).rows, timeline.rows)

  @parameterized.parameters(*zip(samples.draw(range(200), 20)))
  def test_lines_that_share_links(self, seed):
    """Values of one line overtake those of another on no link, also after a death."""
    random = np.random.default_rng(seed)
    num_stages = int(random.integers(2, 5))
    ms = lambda size: tuple(random.uniform(0.1, 5.0, size).tolist())
    limits = lines_lib.in_flight_limits(num_stages)
    costs = costs_lib.StageCosts(ms(num_stages), ms(num_stages), ms(num_stages - 1))
    lines = [
        lines_lib.Line(random.integers(0, 3, num_stages).tolist(), range(4 * i, 4 * i + 4), limits)
        for i in range(3)
    ]
    timeline = simulate_lib.simulate(lines, costs=costs)
    checker.check(timeline.instructions, lines)
    held = {}
    for node, row in timeline.instructions.items():
      held[node] = holdings_lib.after(row[: random.integers(0, len(row) + 1)])
    lost = int(random.integers(0, 3))
    held.pop(lost, None)
    heirs = [[(n + 1) % 3 if n == lost else n for n in line.owners] for line in lines]
    lines = [l._replace(owners=own) for l, own in zip(lines, heirs, strict=True)]
    try:
      rest = simulate_lib.simulate(lines, costs=costs, holdings=held)
    except base.InfeasibleError:
      return  # A gradient was used and is lost.
    checker.check(rest.instructions, lines, held)

  def test_a_gradient_that_nobody_kept(self):
    used = holdings_lib.Holdings(accumulated={(1, 0)})
    with self.assertRaisesRegex(base.InfeasibleError, "Stage 0 needs the gradient of microbatch 0"):
      plan([0, 1], [0], in_flight=None, holdings={1: used})

  @parameterized.parameters(
      (
          "0RA2<0 1F2 1SA2>2 1RG2<2 1B2 0SG2>0",
          "activations 02 12, gradients 02 12, residuals 01, accumulated 00 12",
      ),
      ("2RF2", "activations 22, residuals 01 22, accumulated 00"),
      # Of a forward pass for its output alone nothing else stays.
      ("0F0 0B1", "activations 00, accumulated 00 01"),
  )
  def test_what_a_node_holds(self, text, want):
    start = holdings_lib.Holdings(accumulated={(0, 0)}, residuals={(0, 1)})
    held = holdings_lib.after(map(schedules.parse, text.split()), start)
    show = lambda items: " ".join(f"{stage}{m}" for stage, m in sorted(items))
    self.assertEqual(start, holdings_lib.Holdings(accumulated={(0, 0)}, residuals={(0, 1)}))
    got = ", ".join(f"{kind} {show(items)}" for kind, items in vars(held).items() if items)
    self.assertEqual(got, want)


class RenderGridTest(parameterized.TestCase):

  @parameterized.parameters(
      (
          *("012", 3, None),
          "node 0 F0 F1 F2 ............B0    ...B1    ...B2    ",
          "node 1 ...F0 F1 ......B0    F2 B1    ...B2    ......",
          "node 2 ......F0 B0    F1 B1    F2 B2    ............",
          "       45 columns are 15.00 ms, bubble 40.0 %",
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
