"""The page as Chromium draws it; screenshots are kept in `build/page`."""

import pathlib
import re

from absl.testing import absltest, parameterized

from bamboo_jax.cluster import views
from bamboo_jax.metrics import rows as rows_lib
from bamboo_jax.report import contents
from bamboo_jax.report.live import facts, server, words
from tests import browser, folders, members
from tests.recovery import durations_test
from tests.report import contents_test
from tests.report.live import facts_test

_FOLDER = pathlib.Path(__file__).resolve().parents[3] / "build" / "page"
_DIED_STEP, _STEPS, _STAGES = 40, 60, 4
_CONFIG = {
    "num_steps": 90,
    "name": "mine",
    "model": {"name": "gpt2", "options": {"variant": "tiny"}},
    "data": {"name": "stdlib_text"},
    "pipeline": {"num_pipelines": 2, "num_stages": _STAGES},
}
_RECOVERY = durations_test.RECOVERY | {
    **{"step": _DIED_STEP, "nodes": [5], "names": ["n5"], "victims": ["1/1"], "heirs": ["n4"]}
}


def _slots(names, secs):
  """Returns slots of a step of two pipelines."""
  found = []
  for number, name in enumerate(names):
    stage, at = number % _STAGES, 0.0
    for i in range(4):
      for kind, label, ms in (
          ("forward", f"{stage}F{i}", 10.0),
          ("redundant", f"{stage}RF{i}", 8.0),
          ("transfer", f"{stage}A{i}", 3.0),
          ("backward", f"{stage}B{i}", 20.0),
      ):
        begin = 10.0 * stage + at
        found.append((name, label, kind, begin * secs, (begin + ms) * secs))
        at += ms
  return found


def make_known():
  """Returns a run of ten nodes; n5 has died, and n4 has its stage."""
  here = [members.member(n, "abc"[n % 3]) for n in range(10)]
  known = facts.Known("cluster", facts_test.history())
  known.met |= {m.number: m for m in here}
  lines = [{"event": "layout", "step": 1, "owners": [[0, 1, 2, 3], [4, 5, 6, 7]]}]
  for number in range(1, _STEPS + 1):
    nodes = 10 - (number > _DIED_STEP)
    secs = 6.0 * number
    spent = facts_test.account(secs, nodes, useful=30.0 * number, bubble=20.0 * number)
    spent["parts"] |= {"communication": 4.0 * number, "redundant": 5.0 * number}
    spent["node_secs"] = 60.0 * number - 6.0 * max(0, number - _DIED_STEP)
    lines.append(facts_test.step(number, loss=2 + 3 / number, account=spent))
    if number == _DIED_STEP:
      lines.append({"event": "recovery", **_RECOVERY})
  known.history.add(lines)
  (recovery,) = known.history.recoveries.values()
  recovery["train_secs"] = known.history.totals.secs - 20.0
  owners = {"owners": [0, 1, 2, 3]}, {"owners": [4, 4, 6, 7]}
  shadows = {"0": 3, "1": 0, "2": 1, "3": 2}, {"0": 7, "2": 4, "3": 6}
  told = {"steps": _STEPS, "at_secs": 1000.0, "recoveries": [_RECOVERY]}
  told["layout"] = facts_test.layout(
      *({**o, "shadows": s} for o, s in zip(owners, shadows, strict=True))
  )
  told["ladder"] = {}
  left = tuple(m for m in here if m.number != 5)
  known.run = facts.StoredRun(views.View(4, left, "n5 left: SIGKILL"), left, told, _CONFIG)
  known.config, known.now_secs = _CONFIG, 1001.0
  names = [m.name for m in here[:8]]
  known.rows = rows_lib.Step(
      step=_DIED_STEP,
      at_secs=0.0,
      planned=_slots(names, 1.0),
      measured=_slots([name for name in names if name != "n5"], 20.0),
      deaths=[("n5", 400.0)],
  )
  known.actions = ("kill", "stop", "slow", "notice", "zone", "join")
  return known


@browser.needs_browser
class BrowserTest(folders.FolderCase):
  """One browser for all: 15 s."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.chrome = cls.enterClassContext(browser.started())

  def open(self, value, width, scheme):
    """Returns the page of a value, or the empty one."""
    file = self.folder / "page.html"
    file.write_text(words.render_page(value))
    page, errors = browser.open_page(self.chrome, file.as_uri(), width=width, scheme=scheme)
    page.wait_for_function("(value.head || value.runs) && !due.size")
    self.addCleanup(page.close)
    self.addCleanup(self.assertEqual, errors, [])
    return page

  @parameterized.product(width=(1400, 400), scheme=("light", "dark"))
  def test_a_run_after_a_death(self, width, scheme):
    page = self.open(facts.find(make_known()), width, scheme)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=_FOLDER / f"run_{width}_{scheme}.png", full_page=True)
    text = lambda where: page.inner_text(where)
    self.assertEqual(text("#news"), "n5 (stage 1/1) died; its shadow n4 took over, 2.5 s")
    self.assertEqual(
        text("#title"), "cluster: mine, gpt2 tiny on stdlib_text, 2 pipelines of 4 stages"
    )
    self.assertEqual(text("#state"), "training")
    self.assertEqual(text("#progress"), "step 60 of 90 · run time 6 min 1 s · about 3 min left")
    self.assertIn("owns 1/0, 1/1\nshadows 1/2", text("#node-n4"))
    self.assertIn("n5 zone c\ndied in step 40; its shadow n4 took over", text("#node-n5"))
    self.assertNotIn("Kill", text("#node-n5"))
    wide = page.evaluate("document.documentElement.scrollWidth")
    self.assertLessEqual(wide, width)
    found = page.eval_on_selector_all(
        ".node", "all => all.map(n => [n.id, n.getBoundingClientRect().x, n.offsetTop])"
    )
    self.assertEqual([f[0][5:] for f in found], [f"n{i}" for i in range(10)])
    columns = len({x for _, x, _ in found})
    self.assertEqual(columns, 4 if width > 1000 else 2)
    places = [(top, x) for _, x, top in found]
    self.assertEqual(places, sorted(places))

  @parameterized.parameters(1400, 400)
  def test_nothing_is_known_yet(self, width):
    run = facts.StoredRun(views.EMPTY, [], {}, _CONFIG)
    page = self.open(facts.find(facts.Known("cluster", facts_test.history(), run)), width, "light")
    page.screenshot(path=_FOLDER / f"empty_{width}.png", full_page=True)
    for where, said in (
        ("#state", "starting"),
        ("#survival", "What may fail is not known while training stands still."),
        ("#tiles", "No step is done yet."),
        ("#nodes", "No node has joined yet."),
        ("#time", "No step is done yet."),
        ("#recoveries", "No node has died."),
        ("#events", "Nothing has happened yet."),
    ):
      self.assertEqual(page.inner_text(where).strip(), said)

  @parameterized.product(width=(1400, 400), scheme=("light", "dark"))
  def test_a_report_has_runs_in_columns(self, width, scheme):
    trained = facts.find(make_known()) | {"figures": {"steps": 60, "loss": 2.05}}
    found = contents_test.report()
    runs = [trained, *found["runs"]]
    parts = {name: found[name] for name in ("remarks", "series")}
    tables = {"talk": found["tables"]["talk"]}
    page = self.open(contents.make("A <title>", runs, tables=tables, **parts), width, scheme)
    page.screenshot(path=_FOLDER / f"report_{width}_{scheme}.png", full_page=True)
    self.assertEqual(page.inner_text("#title"), "A <title>")
    head = page.locator("#tables table").first.locator("th").all_inner_texts()
    self.assertEqual(head, ["", "cluster", "ours <x>", "b"])
    self.assertIn("1.025", page.inner_text("#tables"))
    self.assertEqual(page.locator("#time .bar").count(), 3)
    self.assertTrue(page.is_visible("#loss") and page.is_visible("#usd"))
    self.assertIn("ours <x>: 1", page.inner_text("#recoveries"))
    for part in ("#tiles_part", "#nodes_part", "#rows_part"):
      self.assertFalse(page.is_visible(part))
    self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)

  def test_a_report_on_one_run_is_its_page(self):
    value = facts.find(make_known()) | {"figures": {"steps": 60}}
    page = self.open(contents.make("cluster", [value]), 1400, "light")
    self.assertEqual(page.inner_text("#progress")[:13], "step 60 of 90")
    self.assertTrue(page.is_visible("#nodes_part") and page.is_visible("#rows_part"))
    page = self.open(contents.make("a", [contents_test.report()["runs"][0]]), 1400, "light")
    self.assertFalse(page.is_visible("#nodes_part") or page.is_visible("#loss"))
    self.assertIn("after 3,600 s\tcheckpoint: <i>2 nodes</i> lost", page.inner_text("#recoveries"))

  def test_without_a_run_there_are_no_empty_boxes(self):
    file = self.folder / "page.html"
    file.write_text(words.render_page())
    page, _ = browser.open_page(self.chrome, file.as_uri())
    page.wait_for_function("document.getElementById('said').textContent")
    self.assertFalse(page.is_visible("section"))

  def test_the_page_of_a_run_that_ends_says_so(self):
    value = facts.find(make_known())
    value["head"]["step"] = value["head"]["num_steps"]
    address = server.start(iter([value]).__next__, token="token")  # Then the connection ends.
    page, errors = browser.open_page(self.chrome, address)
    page.wait_for_function("document.getElementById('state').textContent === 'over'")
    page.wait_for_function("!due.size")
    self.assertEqual(page.inner_text("#said"), "")
    self.assertEqual(page.inner_text("#progress"), "step 90 of 90 · run time 6 min 1 s")
    self.assertEqual(page.locator("button").count(), 0)
    self.assertEqual(errors, [])

  def test_ticks_are_round(self):
    page = self.open(facts.find(make_known()), 1400, "light")
    for low, high, count, expected in (
        (0, 1087, 5, [0, 500, 1000]),
        (2.05, 4.9, 5, [3, 4]),
        (0, 0.047, 5, [0, 0.01, 0.02, 0.03, 0.04]),
        (1, 60, 5, [20, 40, 60]),
    ):
      self.assertEqual(page.evaluate(f"ticks({low}, {high}, {count})"), expected)


class TemplateTest(absltest.TestCase):

  def test_uses_colours_that_there_are(self):
    page = words.render_page()
    known = {*re.findall(r"--([a-z0-9-]+):", page)}
    used = {
        *re.findall(r'colour\("([a-z0-9-]+)"\)', page),
        *re.findall(r"var\(--([a-z-]+)\)", page),
    }
    self.assertEqual(used - known, {"stages", "column", "zone"} & used)
