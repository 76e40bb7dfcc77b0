import contextlib

from bamboo_jax.accounting import account as account_lib, ledger as ledger_lib, runs
from bamboo_jax.metrics import jsonl
from bamboo_jax.report import run_course
from tests import folders, profiles

_PRICE = profiles.make_price(36.0, 3.6)
_TRAINS = account_lib.NodeTime(useful=3, bubble=1)
_WAITS = account_lib.NodeTime(restart=3)


class RunsTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.path = self.folder / "metrics.jsonl"

  def _write(self):
    """Writes a run of two steps, one of them lost, and one more."""
    ledger = ledger_lib.Ledger(_PRICE)
    with contextlib.closing(jsonl.MetricsWriter(self.path)) as writer:

      def note(step, event=None):
        values = {runs.KEY: ledger.totals().as_dict()}
        if event is None:
          writer.write_step(step, {"loss": 1.0, **values})
        else:
          writer.write_event(event, step=step, values=values)

      ledger.add(10.0, _TRAINS, num_samples=8)
      note(1)
      mark = ledger.totals()
      ledger.add(10.0, _TRAINS, num_samples=8)
      note(2)
      ledger.roll_back(mark)
      ledger.add(5.0, _WAITS)
      note(1, "rollback")
      recovery = {"victims": ["0/1", "1/1"], "rung": "checkpoint"}
      writer.write_event("recovery", step=1, values=recovery)
      ledger.add(10.0, _TRAINS, num_samples=8)
      note(2)
    return ledger

  def _course(self, market):
    lines = jsonl.read_lines(self.path)
    return run_course.make_course(lines, price=_PRICE, market=market)

  def test_account_is_that_of_the_ledger(self):
    ledger = self._write()
    got = runs.load_account(self.path, price=_PRICE, market="spot")
    self.assertEqual(got, ledger.account())
    self.assertEqual(got.num_samples, 16)
    self.assertEqual(got.node_time, account_lib.NodeTime(useful=60, bubble=20, lost=40, restart=15))
    self.assertAlmostEqual(got.usd, 135 * 3.6 / 3600)

  def test_totals_up_to_a_step(self):
    self._write()
    lines = jsonl.read_lines(self.path)
    got = {s: runs.last_totals(lines, up_to_step=s).secs for s in (0, 1, 2, 3)}
    self.assertEqual(got, {0: 0.0, 1: 25.0, 2: 35.0, 3: 35.0})
    self.assertEqual(runs.last_totals(lines).secs, 35.0)

  def test_log_without_account(self):
    with contextlib.closing(jsonl.MetricsWriter(self.path)) as writer:
      writer.write_step(1, {"loss": 1.0})
    with self.assertRaisesRegex(ValueError, "metrics.jsonl contains no account"):
      runs.load_account(self.path, price=_PRICE, market="spot")
    self.assertIsNone(self._course("spot"))

  def test_the_layout_of_a_step_with_a_death_is_told_with_it(self):
    parts = account_lib.NodeTime(useful=20.0).parts
    totals = ledger_lib.Totals(10.0, 20.0, parts).as_dict()
    with contextlib.closing(jsonl.MetricsWriter(self.path)) as writer:
      layout = {"owners": [[0, 0]], "rung": "shadow"}
      writer.write_event("layout", step=3, values=layout)
      writer.write_step(3, {"account": totals})
      recovery = {"victims": ["0/1"], "rung": "shadow"}
      writer.write_event("recovery", step=3, values=recovery)
      repaired = {"owners": [[0, 2]], "rung": "repair"}
      writer.write_event("layout", step=4, values=repaired)
    got = [(e.text, e.rung) for e in self._course("spot").events]
    self.assertEqual(got, [("lost 0/1 in step 3", "shadow"), ("other owners", "repair")])

  def test_joins_are_in_the_course(self):
    def totals(secs, node_secs):
      parts = account_lib.NodeTime(useful=node_secs).parts
      return ledger_lib.Totals(secs, node_secs, parts).as_dict()

    with contextlib.closing(jsonl.MetricsWriter(self.path)) as writer:
      writer.write_step(1, {"account": totals(10.0, 20.0)})
      writer.write_step(2, {"account": totals(20.0, 40.0)})
      writer.write_event("join", step=2, values={"boot_secs": {"4": 15.0}})
      layout = {"owners": [[0, 4]], "rung": "repair"}
      writer.write_event("layout", step=3, values=layout)
      writer.write_step(3, {"account": totals(30.0, 85.0)})
    course = self._course("spot")
    self.assertEqual(course.num_nodes, [2.5, 3.0, 3.0])
    self.assertEqual(
        [(e.secs, e.rung, e.text) for e in course.events],
        [(20.0, "", "node 4 joined after 15.0 s"), (20.0, "repair", "other owners")],
    )

  def test_course(self):
    self._write()
    course = self._course("on_demand")
    self.assertEqual(course.secs, [0.0, 10.0, 25.0, 35.0])
    self.assertEqual(course.samples_per_sec, [0.8, 0.0, 0.8])
    self.assertEqual(course.num_nodes, [4.0, 55 / 15, 4.0])
    self.assertEqual([round(u, 9) for u in course.usd], [0.0, 0.4, 0.95, 1.35])
    (event,) = course.events
    self.assertEqual((event.secs, event.rung), (25.0, "checkpoint"))
    self.assertEqual(event.text, "lost 0/1, 1/1 in step 1")
