import json
import math

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.accounting import account as account_lib
from tests import profiles

Account, NodeTime = account_lib.Account, account_lib.NodeTime
_PRICE = profiles.make_price(3.06, 0.918)
_TRAINS = NodeTime(useful=5, communication=1, redundant=1, bubble=2, idle=1)
_WAITS = NodeTime(restart=8)


def _account(price=_PRICE, market="spot", **changes):
  fields = dict(secs=10.0, num_samples=5, node_secs=20.0, node_time=NodeTime(useful=20.0))
  return Account(**{**fields, **changes}).charge(price, market=market)


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
      ("nan", {"node_time": NodeTime(lost=math.nan)}, "lost=nan"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _account(**changes)


def _add(totals, secs, rate, num_samples=0.0):
  """Adds time at a constant rate, in nodes per kind."""
  return totals + Account(secs, secs * rate.total, rate * secs, num_samples)


_RATES = st.lists(st.floats(0, 1e3), min_size=9, max_size=9)
_ADD = st.tuples(st.just("add"), st.floats(0, 1e6), _RATES, st.floats(0, 1e6))
_BACK = st.tuples(st.just("back"), st.integers(0, 5))


class TotalsTest(parameterized.TestCase):

  def test_rolls_back(self):
    first = _add(Account(), 10.0, _TRAINS, num_samples=50)
    second = _add(first, 10.0, _TRAINS, num_samples=50)
    third = _add(_add(second, 10.0, _TRAINS, num_samples=50), 5.0, _WAITS)
    third = third.roll_back(second)
    account = third.charge(_PRICE)
    self.assertEqual(account.num_samples, 100)
    self.assertEqual(account.secs, 35.0)
    self.assertEqual(account.node_time, _TRAINS * 20 + NodeTime(idle=10, restart=40, lost=90))
    back = third.roll_back(first)
    self.assertEqual(back.num_samples, 50)
    self.assertEqual(back.charge(_PRICE).node_time.lost, 180)
    with self.assertRaisesRegex(AssertionError, "was rolled back"):
      back.roll_back(second)

  @parameterized.parameters(
      {},
      {"parts": {"usefull": 1}},
      {"parts": [1]},
      {"parts": {"lost": -1}},
      {"parts": {"lost": None}},
  )
  def test_refuses_a_line(self, **entries):
    with self.assertRaisesRegex(ValueError, "Not the totals|got lost=-1"):
      account_lib.read({account_lib.KEY: entries})

  def test_of_the_lines_of_a_log(self):
    first = _add(Account(), 10.1, _TRAINS, num_samples=8)
    second = _add(first, 10.2, _TRAINS, num_samples=8)
    back = _add(second.roll_back(first), 5.0, _WAITS)
    again = _add(back, 10.3, _TRAINS, num_samples=8)
    lines = [
        {"step": step, account_lib.KEY: json.loads(json.dumps(totals.to_line()))}
        for step, totals in ((1, first), (2, second), (1, back), (2, again))
    ]
    lines.append({"step": 2, "event": "recovery"})
    for step, want in ((0, Account()), (1, back), (2, again), (3, again), (None, again)):
      self.assertEqual(account_lib.read_last(lines, up_to_step=step), want)

  @hypothesis.given(st.lists(st.one_of(_ADD, st.tuples(st.just("mark")), _BACK), max_size=30))
  @hypothesis.settings(max_examples=60)
  def test_always_adds_up(self, actions):
    totals, marks, node_secs = _add(Account(), 1.0, _TRAINS), [], 0.0
    kept = []  # Samples of each piece; a mark is a length.
    for action, *values in actions:
      if action == "add":
        secs, parts, num_samples = values
        totals = _add(totals, secs, NodeTime(*parts), num_samples)
        kept.append(num_samples)
        node_secs += secs * sum(parts)
      elif action == "mark":
        marks.append((totals, len(kept)))
      elif values[0] < len(marks):
        marks = marks[: values[0] + 1]
        totals = totals.roll_back(marks[-1][0])
        kept = kept[: marks[-1][1]]
    account = totals.charge(_PRICE)
    self.assertAlmostEqual(sum(account.node_time.shares().values()), 1.0)
    self.assertTrue(math.isclose(account.node_secs, node_secs + 10.0))
    self.assertTrue(math.isclose(account.num_samples, sum(kept), abs_tol=1e-6), msg=kept)
