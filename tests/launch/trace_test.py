"""The command `bamboo trace`."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax.launch import trace
from bamboo_jax.traces import readers
from tests import figures, folders
from tests.launch import commands


# Each run starts Python, 0.4 s, and those that draw a second more.
class TraceTest(folders.FolderCase):

  def _succeed(self, *arguments):
    done = commands.fork("-m", "launch.trace", *arguments)
    self.assertEqual(done.returncode, 0, done.stderr)
    return done.stdout

  def test_generate_show_resample(self):
    path = self.folder / "trace.csv"
    options = [
        "--config.study.trace.nodes_per_zone=(6,4)",
        "--config.study.trace.hours=48",
        "--config.study.trace.hazard_per_node_hour=0.5",
        "--config.study.trace.bulk_sizes=((1,3),(2,1))",
        "--seed=3",
    ]
    self._succeed("generate", f"--out={path}", *options)
    recorded = readers.read_traces([path])
    self.assertEqual(recorded.num_nodes, 10)
    self.assertEqual(recorded.duration_ms, 48 * 3_600_000)
    self.assertEqual(recorded.zones, ("zone0", "zone1"))

    figure, events = self.folder / "a.png", self.folder / "small.csv"
    shown = self._succeed(
        "show",
        str(path),
        "--num_nodes=5",
        "--time_scale=0.1",
        f"--events={events}",
        f"--out={figure}",
    )
    self.assertRegex(shown, r"hours +4\.8\n")
    self.assertRegex(shown, r"live nodes, most +5\n")
    self.assertRegex(shown, r"zones +zone0 zone1\n")
    self.assertEqual(figure.read_bytes()[:4], b"\x89PNG")
    self.assertEqual(readers.read_traces([events]).num_nodes, 5)

    more = self.folder / "more.csv"
    self._succeed("resample", str(path), f"--out={more}", "--hours=96", "--block_hours=6")
    again = readers.read_traces([more])
    self.assertEqual((again.zones, again.duration_ms), (recorded.zones, 96 * 3_600_000))
    self.assertIn("# blocks of 6 h of ", more.read_text())


_TRACE = readers.parse_trace("0,add,a\n0,add,b\n9,remove,a\n9,remove,b", source="a")
_QUIET = readers.parse_trace("# duration_ms=9\n0,add,a", source="b")


class FigureTest(parameterized.TestCase):

  @parameterized.parameters((_TRACE, [(2, 1)]), (_QUIET, []))
  def test_figure(self, shown, bulks):
    named = dataclasses.replace(shown, name="some/folder/a $b$.csv")
    fig = trace.draw(named)
    self.assertEmpty(figures.find_faults(fig))
    over_time, by_size = fig.axes
    self.assertEqual(over_time.get_title(loc="left"), r"a \$b\$.csv")
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in by_size.patches]
    self.assertEqual(bars, bulks)
    ticks = by_size.get_xticks()
    self.assertTrue(all(tick == round(tick) for tick in ticks), ticks)
