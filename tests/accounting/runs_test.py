import contextlib

from bamboo_jax.accounting import account as account_lib, ledger as ledger_lib, runs
from bamboo_jax.metrics import jsonl
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

  def test_account_is_that_of_the_ledger(self):
    ledger = self._write()
    totals = runs.last_totals(jsonl.read_lines(self.path))
    got = ledger_lib.Ledger(_PRICE, market="spot", start=totals).account()
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
