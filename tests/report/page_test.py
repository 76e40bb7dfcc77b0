import html.parser
import re

from absl.testing import parameterized

from bamboo_jax.accounting import account as account_lib, ledger as ledger_lib
from bamboo_jax.report import content, page
from tests import folders, profiles

_PRICE = profiles.make_price(3.06, 0.918, instance="small<b>", source="a & b", date="2021")


def _course(**changes):
  fields = dict(
      secs=[0.0, 3600.0, 4000.0, 9000.0],
      samples_per_sec=[80.0, 0.0, 60.0],
      num_nodes=[8, 6, 6],
      usd=[0.0, 8.0, 8.6, 16.0],
      events=[
          content.RunEvent(3600.0, "<i>2 nodes</i> lost", "checkpoint"),
          content.RunEvent(5000.0, "1 node added"),
      ],
  )
  return content.Course(**{**fields, **changes})


def _run(name, useful, *, course=None):
  ledger = ledger_lib.Ledger(_PRICE)
  activity = account_lib.NodeTime(useful=useful, idle=8 - useful)
  ledger.add(3600.0, activity, num_samples=3600.0 * useful)
  return content.ReportRun(name=name, account=ledger.account(), course=course)


def _figures(what, published, *simulated, note=""):
  return content.Figures(what=what, published=published, simulated=simulated, note=note)


def _report():
  points = [content.Point(rate, 2.0, 1.9, 2.2, 5) for rate in (0.01, 0.5)]
  return content.Page(
      title="A <title>",
      remarks=["calibrated & labelled"],
      runs=[
          _run("ours $<x>", 6.0, course=_course()),
          _run("restart", 2.0, course=_course(events=())),
      ],
      curves=[
          content.Curve(policy="ours $a_1$", points=points),
          content.Curve(policy="restart", points=[content.Point(0.01, 2.0, None, None, 1)]),
      ],
      comparisons=[
          content.Comparison(
              title="Table",
              source="a talk",
              columns=["artifact's rules", "sound rules"],
              lines=[
                  _figures("p = 0.10", 80.0, 82.0, None),
                  _figures("GPT", None, 1, 2, note="OOM"),
              ],
          )
      ],
  )


class _Page(html.parser.HTMLParser):
  """Gathers cells of tables, pictures, and tags left open."""

  def __init__(self, text):
    super().__init__()
    self.rows, self.sources, self._open = [], [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    if tag == "img":
      self.sources.append(dict(attrs)["src"])
    elif tag != "meta":
      self._open.append(tag)
    if tag == "tr":
      self.rows.append([])
    elif tag in ("td", "th"):
      self.rows[-1].append("")

  def handle_endtag(self, tag):
    assert self._open.pop() == tag, tag

  def handle_data(self, data):
    if self._open and self._open[-1] in ("td", "th"):
      self.rows[-1][-1] += data

  def is_whole(self):
    return not self._open


class ContentTest(parameterized.TestCase):

  def test_ratios(self):
    ratios = _figures("x", 80.0, 82.0, None, 0.0).ratios
    self.assertEqual(ratios, (1.025, None, 0.0))
    for published in (None, 0.0):
      self.assertEqual(_figures("x", published, 1).ratios, (None,))

  @parameterized.named_parameters(
      ("pieces", {"num_nodes": [1, 2]}),
      ("dollars", {"usd": [1, 2, 3]}),
      ("times", {"secs": [0, 2, 1, 3]}),
  )
  def test_refuses_a_course(self, changes):
    with self.assertRaises(AssertionError):
      _course(**changes)

  def test_refuses_a_name_that_is_there_twice(self):
    with self.assertRaises(AssertionError):
      content.Page(title="t", runs=[_run("a", 1), _run("a", 2)])


class PageTest(folders.FolderCase):

  def test_page(self):
    path = page.write_report(self.folder, _report())
    text = path.read_text()
    parsed = _Page(text)
    self.assertTrue(parsed.is_whole())
    self.assertLen(parsed.sources, 4)
    for source in parsed.sources:
      self.assertStartsWith(source, "data:image/png;base64,iVBORw0KGgo")
    self.assertEmpty(re.findall(r"https?:|<script|<link", text))
    self.assertNotIn("<title>A <title>", text)
    self.assertNotIn("<i>", text)
    self.assertIn("calibrated &amp; labelled", text)
    figures = ["node_time.png", "run_ours_x.png", "run_restart.png"]
    self.assertEqual(
        sorted(p.name for p in self.folder.iterdir()),
        [figures[0], "report.html", *figures[1:], "value.png"],
    )
    rows = {row[0]: row for row in parsed.rows}
    self.assertEqual(rows["p = 0.10"], ["p = 0.10", "80", "82", "1.025", "–", "–", ""])
    self.assertEqual(rows["GPT"], ["GPT", "–", "1", "–", "2", "–", "OOM"])
    self.assertEqual(rows["5000.000"], ["5000.000", "1 node added", "–"])
    self.assertIn(["ours $a_1$", "2 ± 0.2", "2 ± 0.2"], parsed.rows)
    self.assertIn(["restart", "2", "–"], parsed.rows)  # A run: no interval.
    shares = [r for r in parsed.rows if r[0] == "ours $<x>"]
    self.assertEqual(shares[0][1], "75.00 %")
    # The best run comes first; all nodes have one price.
    names = [row[0] for row in parsed.rows]
    self.assertLess(names.index("ours $<x> (best)"), names.index("restart"))
    self.assertEqual(rows["ours $<x> (best)"][1:4], ["6", "7.344", "0.817"])
    self.assertEqual(text.count("an hour for a small&lt;b&gt; (spot; a &amp; b, 2021)"), 1)
    self.assertIn('<a href="value.png">', text)

  def test_formats(self):
    path = page.write_report(self.folder, _report(), formats=("pdf", "svg"))
    self.assertStartsWith((self.folder / "value.pdf").read_bytes(), b"%PDF")
    self.assertEmpty(list(self.folder.glob("*.png")))
    text = path.read_text()  # Browsers show PNGs wherever the page goes.
    self.assertEqual(text.count("data:image/png;base64"), 4)
    self.assertIn('<a href="value.pdf">value.pdf</a> · <a href="value.s', text)

  def test_names_of_files_differ(self):
    runs = [_run(name, 1, course=_course()) for name in ("a b", "A-b")]
    page.write_report(self.folder, content.Page(title="t", runs=runs))
    self.assertLen(list(self.folder.glob("run_*.png")), 2)

  def test_says_that_events_are_left_out(self):
    events = [content.RunEvent(float(i), "lost") for i in range(700)]
    runs = [_run("a", 1, course=_course(events=events))]
    path = page.write_report(self.folder, content.Page(title="t", runs=runs))
    self.assertIn("700 events, the first 500 of them", path.read_text())

  def test_empty(self):
    path = page.write_report(self.folder, content.Page(title="t"))
    self.assertTrue(_Page(path.read_text()).is_whole())
    self.assertLen(list(self.folder.iterdir()), 1)
