import json
import math

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.accounting import account as account_lib, ledger as ledger_lib
from tests import profiles

NodeTime = account_lib.NodeTime
_PRICE = profiles.make_price(3.06, 0.918)
_TRAINS = NodeTime(useful=5, communication=1, redundant=1, bubble=2, idle=1)
_WAITS = NodeTime(restart=8)


def _account(**changes):
  fields = dict(
      secs=10.0, num_samples=5, node_secs=20.0, node_time=NodeTime(useful=20.0), price=_PRICE
  )
  return account_lib.Account(**{**fields, **changes})


class AccountTest(parameterized.TestCase):

  def test_figures(self):
    # Bamboo's published table: 24.53 $/h and 40.37 samples/s at p = 0.50.
    hours, num_nodes = 2.0, 24.53 / 0.918
    node_secs = hours * 3600 * num_nodes
    account = _account(
        secs=hours * 3600,
        num_samples=40.37 * hours * 3600,
        node_secs=node_secs,
        node_time=NodeTime(useful=0.75 * node_secs, lost=0.25 * node_secs),
    )
    got = account.as_dict()
    self.assertAlmostEqual(got["throughput_samples_per_sec"], 40.37)
    self.assertAlmostEqual(got["cost_usd_per_hour"], 24.53)
    self.assertAlmostEqual(got["value"], 40.37 / 24.53)
    self.assertAlmostEqual(got["cost_usd"], 2 * 24.53)
    self.assertEqual(got["cost_usd"], got["spot_usd"])
    self.assertAlmostEqual(got["on_demand_usd"], 2 * num_nodes * 3.06)
    self.assertAlmostEqual(got["usd_per_million_samples"], 24.53 / 3600 / 40.37 * 1e6)
    self.assertAlmostEqual(got["useful_pct"], 75.0)
    self.assertAlmostEqual(got["lost_pct"], 25.0)

  def test_on_demand(self):
    spot, on_demand = _account(), _account(market="on_demand")
    self.assertEqual(on_demand.usd, spot.usd_on("on_demand"))
    self.assertAlmostEqual(on_demand.value / spot.value, 0.918 / 3.06)

  def test_without_a_price_nothing_is_in_dollars(self):
    priced, account = _account().as_dict(), _account(price=None)
    got = account.as_dict()
    self.assertEqual(got, {k: v for k, v in priced.items() if k in got})
    self.assertEqual(
        priced.keys() - got.keys(),
        {"instance", "market", "value"} | {k for k in priced if "usd" in k},
    )

  def test_nothing_there(self):
    account = _account(num_samples=0, node_secs=0.0, node_time=NodeTime())
    self.assertEqual(account.value, 0.0)
    self.assertIsNone(account.usd_per_million_samples)
    self.assertEqual(set(account.node_time.shares().values()), {0.0})

  @parameterized.named_parameters(
      ("parts", {"node_secs": 20.1}, "the 20.1 node-seconds .*, got 20.0 .99.50"),
      ("more", {"node_secs": 0.0}, "the 0.0 node-seconds .*, got 20.0"),
      ("time", {"secs": 0.0}, "needs time"),
      ("samples", {"num_samples": math.inf}, "num_samples=inf"),
      ("market", {"market": "spott"}, "Unknown market 'spott'; did you mean"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _account(**changes)

  @parameterized.parameters(-1.0, math.nan, math.inf)
  def test_refuses_time_of_nodes(self, secs):
    with self.assertRaisesRegex(ValueError, "lost="):
      NodeTime(lost=secs)


class LedgerTest(parameterized.TestCase):

  def test_adds(self):
    ledger = ledger_lib.Ledger(_PRICE)
    ledger.add(100.0, _TRAINS, num_samples=500)
    ledger.add(50.0, _WAITS)
    account = ledger.account()
    self.assertEqual(account.secs, 150.0)
    self.assertEqual(account.node_secs, 1400.0)
    self.assertEqual(account.num_samples, 500)
    self.assertEqual(account.node_time, _TRAINS * 100 + NodeTime(restart=400))
    self.assertAlmostEqual(account.value, 500 / (1400 / 3600 * 0.918) / 3600)

  def test_a_price_can_be_applied_later(self):
    start = ledger_lib.Ledger(_PRICE)
    start.add(100.0, _TRAINS, num_samples=500)
    later = ledger_lib.Ledger(None, start=start.totals())
    later.add(100.0, _TRAINS, num_samples=500)
    totals = ledger_lib.Totals.parse(later.totals().as_dict())
    self.assertEqual(totals.num_samples, 1000)
    again = ledger_lib.Ledger(_PRICE, start=totals)
    again.add(100.0, _TRAINS, num_samples=500)
    self.assertAlmostEqual(again.account().usd, 3000 * 0.918 / 3600)
    mark = later.totals()
    later.add(100.0, _TRAINS, num_samples=500)
    later.roll_back(mark)
    self.assertEqual(later.account().num_samples, 1000)

  def test_rolls_back(self):
    ledger = ledger_lib.Ledger(_PRICE)
    ledger.add(10.0, _TRAINS, num_samples=50)
    first = ledger.totals()
    ledger.add(10.0, _TRAINS, num_samples=50)
    second = ledger.totals()
    ledger.add(10.0, _TRAINS, num_samples=50)
    ledger.add(5.0, _WAITS)
    ledger.roll_back(second)
    account = ledger.account()
    self.assertEqual(account.num_samples, 100)
    self.assertEqual(account.secs, 35.0)
    self.assertEqual(account.node_time, _TRAINS * 20 + NodeTime(idle=10, restart=40, lost=90))
    ledger.roll_back(first)
    self.assertEqual(ledger.account().num_samples, 50)
    self.assertEqual(ledger.account().node_time.lost, 180)
    with self.assertRaisesRegex(ValueError, "was rolled back"):
      ledger.roll_back(second)

  @parameterized.parameters(-1.0, math.nan)
  def test_refuses_time_and_samples(self, number):
    ledger = ledger_lib.Ledger(_PRICE)
    with self.assertRaisesRegex(ValueError, f"secs={number}"):
      ledger.add(number, _TRAINS)
    with self.assertRaisesRegex(ValueError, f"num_samples={number}"):
      ledger.add(1.0, _TRAINS, num_samples=number)
    with self.assertRaisesRegex(ValueError, "needs time"):
      ledger.account()

  def test_rate_must_add_up_to_the_live_nodes(self):
    ledger = ledger_lib.Ledger(_PRICE)
    ledger.add(2.0, NodeTime(useful=7.0), num_nodes=8)
    with self.assertRaisesRegex(ValueError, "the 16.0 .*, got 14.0 .87.5"):
      ledger.account()

  def test_measured_time_is_taken_as_it_is(self):
    ledger = ledger_lib.Ledger(_PRICE)
    time = NodeTime(useful=0.7, bubble=0.2)
    ledger.add_time(0.3, time, num_samples=6)
    ledger.add_time(0.0, NodeTime(idle=1.0))
    account = ledger.account()
    self.assertEqual(account.node_time, time)
    self.assertAlmostEqual(account.num_nodes, 3.0)

  def test_goes_on_from_a_line_of_a_log(self):
    ledger = ledger_lib.Ledger(_PRICE)
    ledger.add(0.1, _TRAINS, num_samples=3)
    ledger.add(0.7, _WAITS)
    text = json.dumps(ledger.totals().as_dict())
    start = ledger_lib.Totals.parse(json.loads(text))
    self.assertEqual(start, ledger.totals())
    resumed = ledger_lib.Ledger(_PRICE, start=start)
    for one in (ledger, resumed):
      one.add(1.1, _TRAINS, num_samples=3)
    self.assertEqual(resumed.account(), ledger.account())

  @parameterized.parameters({}, {"parts": {"usefull": 1}}, {"parts": [1]})
  def test_refuses_a_line(self, **entries):
    with self.assertRaisesRegex(ValueError, "Not the totals"):
      ledger_lib.Totals.parse(entries)

  @hypothesis.given(
      st.lists(
          st.one_of(
              st.tuples(
                  st.just("add"),
                  st.floats(0, 1e6),
                  st.lists(st.floats(0, 1e3), min_size=9, max_size=9),
                  st.floats(0, 1e6),
              ),
              st.tuples(st.just("mark")),
              st.tuples(st.just("back"), st.integers(0, 5)),
          ),
          max_size=30,
      )
  )
  @hypothesis.settings(max_examples=60, deadline=None)
  def test_always_adds_up(self, actions):
    ledger, marks, node_secs = ledger_lib.Ledger(_PRICE), [], 0.0
    kept = []  # Samples of each piece; a mark is a length.
    ledger.add(1.0, _TRAINS)
    for action, *values in actions:
      if action == "add":
        secs, parts, num_samples = values
        ledger.add(secs, NodeTime.of(parts), num_samples=num_samples)
        kept.append(num_samples)
        node_secs += secs * sum(parts)
      elif action == "mark":
        marks.append((ledger.totals(), len(kept)))
      elif values[0] < len(marks):
        marks = marks[: values[0] + 1]
        ledger.roll_back(marks[-1][0])
        kept = kept[: marks[-1][1]]
    account = ledger.account()
    self.assertAlmostEqual(sum(account.node_time.shares().values()), 1.0)
    self.assertTrue(math.isclose(account.node_secs, node_secs + 10.0))
    self.assertTrue(
        math.isclose(account.num_samples, sum(kept), abs_tol=1e-6),
        msg=f"{account.num_samples} {kept}",
    )


_SECS = st.floats(0, 100)
_TIMES = st.builds(NodeTime, useful=_SECS, redundant=_SECS, recovery=_SECS)


def _split(passes=NodeTime(), joint=NodeTime(), **values):  # noqa: B008
  return account_lib.split_step(10.0, num_nodes=4, passes=passes, joint=joint, **values)


class SplitStepTest(parameterized.TestCase):

  def test_parts(self):
    for got, want in (
        (_split(), NodeTime(bubble=40.0)),
        (
            _split(NodeTime(useful=20, redundant=3), NodeTime(useful=1), num_idle=2),
            NodeTime(useful=24.0, redundant=3.0, bubble=13.0, idle=20.0),
        ),
        (
            _split(NodeTime(useful=20.0), NodeTime(redundant=0.5)),
            NodeTime(useful=20.0, redundant=2.0, bubble=18.0),
        ),
        (
            _split(NodeTime(useful=20.0, recovery=2.0), NodeTime(recovery=1), lost_secs=7.0),
            NodeTime(useful=20.0, recovery=6.0, bubble=14.0, lost=7.0),
        ),
        (  # Parts that overlap: no more than there was.
            _split(NodeTime(useful=35.0), NodeTime(useful=1, recovery=2)),
            NodeTime(useful=39.0, recovery=1.0),
        ),
    ):
      self.assertEqual(got, want)

  @hypothesis.given(_TIMES, _TIMES, st.integers(0, 5), _SECS)
  def test_whole(self, passes, joint, num_idle, lost_secs):
    got = _split(passes, joint, num_idle=num_idle, lost_secs=lost_secs)
    self.assertAlmostEqual(got.total, 10.0 * (4 + num_idle) + lost_secs)
