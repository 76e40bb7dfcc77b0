"""What a page shows of a run."""

import dataclasses
import itertools
import json

from absl.testing import absltest

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import account as account_lib, prices
from bamboo_jax.cluster import views
from bamboo_jax.recovery import decide
from bamboo_jax.report.live import facts, words
from tests import layouts, members
from tests.recovery import durations_test

member = members.member
_CONFIG = {"num_steps": 9}


def account(secs, num_nodes, **parts):
  """Returns the account in a line of a log, also of an older version."""
  spent = account_lib.Account(secs, secs * num_nodes, account_lib.NodeTime(**parts), 1.0)
  return spent.to_line() | {"value_secs": None}


def step(number, **more):
  entries = {"step": number, "loss": 2.0, "tokens_per_sec": 50.0, "step_ms": 2000.0}
  return entries | {"account": account(2.0 * number, 4, useful=8.0 * number)} | more


def history(*lines, kills=None):
  made = facts.History(kills or {})
  made.add(lines)
  return made


def layout(*roles):
  """Returns pipelines of a layer in each stage, as a member reports them."""
  bounds = [*range(max((len(r["owners"]) for r in roles), default=0) + 1)]
  return {
      "pipelines": [{"partition": {"bounds": bounds}, "roles": r} for r in roles],
      "shares": [[i] for i, _ in enumerate(roles)],
      "segments": bounds,
      "members": [],  # For newcomers.
  }


def run(*here, roles, ladder=None, leaving=(), registered=()):
  """Returns a run whose nodes have these roles; nodes 1 and 3 are in zone b."""
  view = views.View(4, here, "n9 left: SIGKILL", leaving)
  told = {"steps": 5, "at_secs": 100.0, "metrics": {"loss": float("nan")}}
  told["layout"] = layout(*roles)
  told["ladder"] = dataclasses.asdict(ladder or decide.Ladder())
  return facts.StoredRun(view, (*here, *registered), told, _CONFIG)


def nodes(number, zones="abab"):
  return [member(n, zones[n]) for n in range(number)]


_TWO = (
    {"owners": [0, 1], "shadows": {"0": 1, "1": 0}},
    {"owners": [2, 3], "shadows": {"0": 3, "1": 2}},
)


class FactsTest(absltest.TestCase):

  def find(self, run=None, **known):
    known.setdefault("history", history())
    found = facts.find(facts.Known("mine", run=run, **known))
    json.loads(json.dumps(found, allow_nan=False))
    return found

  def render(self, run, **known):
    """Returns the lines that a terminal shows."""
    found = self.find(run, now_secs=100.5, **known)
    return words.render_status(found, now_secs=100.5).splitlines()

  def test_who_died_and_is_marked_yet_is_gone(self):
    here = run(*nodes(4), roles=_TWO, registered=[member(7, "b")])
    here.status["recoveries"] = [durations_test.RECOVERY | {"nodes": [7], "names": ["n7"]}]
    got = self.find(here)["nodes"]
    self.assertEqual([n["name"] for n in got], ["n0", "n1", "n2", "n3", "n7"])
    self.assertEqual(got[-1]["role"], "gone")

  def test_a_death_is_told_for_a_minute(self):
    line = {"event": "recovery"} | durations_test.RECOVERY
    for now_secs, expected in ((100.0, 1), (159.0, 1), (161.0, 0)):
      known = dict(history=history(step(1), line), now_secs=now_secs)
      got = self.find(run(*nodes(4), roles=_TWO), **known)["head"]
      self.assertEqual(
          got["news"], ["n1 (stage 0/1) died; its shadow n2 took over, 2.5 s"] * expected
      )
      self.assertEqual((got["state"], got["step"]), ("training", 5))

  def test_zones_keep_their_colours(self):
    known = facts.Known("mine", history())
    for seen in (nodes(4, "bcab"), [member(5, "a0"), member(6, "c"), member(0, "b")]):
      known.met |= {m.number: m for m in seen}
    self.assertEqual(facts.find(known)["zones"], ["b", "c", "a", "a0"])

  def test_a_run_that_is_over_has_nodes_rather_than_stages(self):
    layout = {"event": "layout", "step": 2, "owners": [[0, 4], [2, 0]]}
    layout["names"] = {"0": "n3", "2": "n0", "4": "n1"}
    got = self.find(history=history(step(1), layout, step(2)))
    found = [(n["name"], n["places"]) for n in got["nodes"]]
    self.assertEqual(found, [("n3", ["0/0", "1/1"]), ("n1", ["0/1"]), ("n0", ["1/0"])])
    self.assertTrue(got["head"]["is_over"])

  def test_the_start_of_a_newcomer_is_no_further_node(self):
    """It is charged with the step in which it joins."""
    join = {"event": "join", "step": 2, "boot_secs": {"4": 6.0}}
    spent = account(4.0, 4, useful=16.0, idle=6.0) | {"node_secs": 22.0}
    got = self.find(history=history(step(1), join, step(2, account=spent)))
    self.assertEqual([point[4] for point in got["curve"]], [4.0, 4.0])

  def test_a_death_that_is_not_dealt_with_yet(self):
    here, met = run(*nodes(3), roles=_TWO), {3: member(3, "b")}
    got = self.find(here, met=met)
    self.assertEqual((got["head"]["news"], got["head"]["state"]), (["n3 died"], "paused: n3 died"))
    self.assertEqual([n["if_lost"] for n in got["nodes"]], [None] * 4)
    self.assertEqual(got["survival"]["zones"], {"a": None, "b": None})
    self.assertNotIn("loss", got["metrics"])  # It is not finite.
    self.assertIn("n3    b     gone                       gone", self.render(here, met=met))
    lines = self.render(here)  # Nobody has met it.
    self.assertIn("paused: node 3 died", lines)
    self.assertIn("What may fail is not known while training stands still.", lines)

  def test_rungs_without_replicas(self):
    bare = [{"owners": [0, 1], "shadows": {}}, {"owners": [2, 3], "shadows": {}}]
    for zones, reroute, expected in (
        ("aabb", "shares", {"a": "reroute", "b": "reroute"}),
        ("aabb", "none", {"a": "reconfigure", "b": "reconfigure"}),
        ("abab", "none", {"a": "checkpoint", "b": "checkpoint"}),
    ):
      ladder = layouts.make_ladder(has_replicas=False, reroute=reroute)
      got = self.find(run(*nodes(4, zones), roles=bare, ladder=ladder))
      with self.subTest(zones + reroute):
        self.assertEqual(got["survival"]["zones"], expected)

  def test_dollars_at_the_present_rate_and_per_token(self):
    price = prices.find(config_lib.CostSection(instance="p3.2xlarge"))
    per_hour = price.usd_per_hour("spot")
    got = self.find(run(*nodes(4), roles=_TWO), history=history(step(1), step(2)), price=price)[
        "metrics"
    ]
    self.assertEqual(got["loss"], 2.0)
    self.assertAlmostEqual(got["usd_per_hour"], 4 * per_hour)
    usd = 16 * per_hour / 3600  # Sixteen node-seconds.
    self.assertAlmostEqual(got["usd"], usd)
    self.assertAlmostEqual(got["usd_per_million_tokens"], 1e6 * usd / 200)

  def test_recoveries_of_store_and_log_are_told_once(self):
    line = {"event": "recovery"} | durations_test.RECOVERY
    here = run(*nodes(4), roles=_TWO)
    other = durations_test.RECOVERY | {"view": 3, "ready_at_secs": None}
    here.status["recoveries"] = [durations_test.RECOVERY, other]
    got = self.find(here, history=history(line))
    self.assertEqual(
        [(r["view"], r["names"], r["pause_secs"]) for r in got["recoveries"]],
        [(2, ["n1"], 2.5), (3, ["n1"], 2.5)],
    )
    got = self.find(history=history(line, kills={1: 10.0}))["recoveries"]
    found = [(r["detect_secs"], r["pause_secs"]) for r in got]
    self.assertEqual(found, [(0.5, 3.0)])  # By a button of this process.

  def test_recoveries_of_all_lives_are_told(self):
    start, line = {"event": "start", "step": 0}, {"event": "recovery"} | durations_test.RECOVERY
    here = run(*nodes(4), roles=_TWO)
    here.status["recoveries"] = [durations_test.RECOVERY]  # Of the last life.
    for known in (None, here):
      got = self.find(known, history=history(start, line, start, line))
      self.assertEqual([r["view"] for r in got["recoveries"]], [2, 2])

  def test_what_follows_the_last_step_is_charged(self):
    end = {"event": "cost", "step": 1} | {"account": account(3.0, 4, useful=8.0, checkpoint=4.0)}
    got = self.find(history=history(step(1), end))["time"]
    self.assertAlmostEqual(got["parts"]["checkpoint"], 4.0)

  def test_goodput_and_badput(self):
    spent = account(10.0, 1, useful=4.0, bubble=2.0, recovery=1.0, idle=3.0)
    got = self.find(history=history(step(1, account=spent)))["time"]
    self.assertAlmostEqual(got["goodput_pct"], 40.0)
    self.assertEqual(
        {name: secs for name, secs in got["badput_secs"].items() if secs},
        {"INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": 1.0, "OTHER": 3.0},
    )

  def test_status_of_training(self):
    roles = _TWO[0], {"owners": [2, 3], "shadows": {"0": 3}}
    here = run(
        *nodes(4),
        member(5, "c"),
        roles=roles,
        leaving=(2,),
        registered=[member(6, "c"), member(7, "b"), member(8, "a")],
    )
    here.status["slow"] = [
        {"step": 4, "node": "n2", "host": "h", "factor": 4.9},
        {"step": 7, "node": "n3", "host": "h", "factor": 2},
    ]
    here.status["uploaded"] = {"saved": 4, "mib": 7.71, "secs": 0.2, "mib_per_sec": 36.9}
    line = {"event": "recovery"} | durations_test.RECOVERY
    slow = {"event": "slow"} | here.status["slow"][0]
    known = dict(history=history(step(3), step(4), line, slow), met={7: member(7, "b")})
    self.assertEqual(
        [node["role"] for node in self.find(here, **known)["nodes"]],
        ["owner", "owner", "leaving", "owner", "spare", "joining", "joining", "gone"],
    )
    self.assertEqual(
        self.render(here, **known),
        [
            "run=mine view=4 step=5 num_steps=9 told_secs_ago=0.5",
            "training, run time 8 s, about 8 s left",
            "view 4: n9 left: SIGKILL",
            "node  zone  place       owns  shadows",
            "n0    a     pipeline 0  0/0   0/1      if it dies: its shadow takes over",
            "n1    b     pipeline 0  0/1   0/0      if it dies: its shadow takes over",
            "n2    a     pipeline 1  1/0            if it dies: its shadow takes over",
            "n3    b     pipeline 1  1/1   1/0      if it dies: another pipeline computes for it",
            "n5    c     spares                     if it dies: nothing is lost",
            "n6    c     joining",
            "n8    a     joining",
            "n7    b     gone                       gone",
            "Any one zone or any two nodes may fail. "
            "If zone a or c fails, shadows take over at once.",
            "step 3: n1 (stage 0/1) died; its shadow n2 took over (noticed after: unknown, not "
            "heard for 0.40 s, agreed in 0.25 s, redone in 1.00 s, pause 2.50 s)",
            "step 4: slow: n2 on h, 4.9 times as slow as it should be",
            "step 4: uploaded step 4: 7.7 MiB in 0.2 s, 36.9 MiB/s",
            "step 7: slow: n3 on h, 2 times as slow as it should be",
        ],
    )

  def test_before_the_first_step(self):
    view = views.View(4, (), "n1 left: SIGKILL")
    self.assertEqual(
        self.render(facts.StoredRun(view, [member(1, "b")], {}, _CONFIG)),
        [
            "run=mine view=4 num_steps=9",
            "starting",
            "view 4: n1 left: SIGKILL",
            "node  zone  place    owns  shadows",
            "n1    b     joining",
            "What may fail is not known while training stands still.",
        ],
    )
    told = {"steps": 2, "at_secs": 90.0}
    lines = history(step(1), step(2))
    got = self.render(facts.StoredRun(view, [], told, _CONFIG), history=lines)
    self.assertIn("not alive: no agent of it is there, run time 4 s", got)
    got = self.render(facts.StoredRun(views.EMPTY, [], {}, _CONFIG))
    self.assertIn("starting", got)

  def test_a_layout_whose_nodes_have_not_met(self):
    told = run(roles=_TWO[:1], registered=nodes(2))
    del told.status["steps"]
    begun = views.begin_run(told.view, "all agents have ended")
    for view, number in ((views.EMPTY, ""), (begun, " view=5")):
      lines = self.render(dataclasses.replace(told, view=view))
      self.assertEqual(lines[:2], [f"run=mine{number} num_steps=9", "starting"])
      self.assertIn("n1    b     joining", lines)


class HistoryTest(absltest.TestCase):

  def test_points(self):
    got = history(step(1), step(2, loss=None), step(3, tokens_per_sec=None))
    self.assertEqual(
        got.points,
        [
            (1, 2.0, 2.0, 50.0, 4.0, 8.0, 1.0),
            (2, 4.0, None, 50.0, 4.0, 16.0, 1.0),
            (3, 6.0, 2.0, None, 4.0, 24.0, 1.0),
        ],
    )
    self.assertEqual(got.num_tokens, 200.0)
    line = step(1, samples_per_sec=8.0)
    del line["tokens_per_sec"]
    got = history(line)
    self.assertEqual((got.points[0][3], got.num_tokens), (8.0, 0.0))  # Samples are no tokens.

  def test_a_long_run_is_thinned(self):
    got = history(*map(step, range(1, 5001)))
    self.assertBetween(len(got.points), 500, 1000)
    numbers = [point[0] for point in got.points]
    self.assertEqual(numbers[-1], 5000)
    self.assertLen({b - a for a, b in itertools.pairwise(numbers)}, 1)

  def test_a_pause_ends_with_the_next_step(self):
    pause = {"event": "pause", "step": 2, "reason": "evaluating after step 1"}
    self.assertEqual(history(step(1), pause).pause, "evaluating after step 1")
    self.assertEqual(history(step(1), pause).events, [])
    for after in (step(2), {"event": "eval", "step": 1}):
      self.assertEqual(history(step(1), pause, after).pause, "")

  def test_events(self):
    got = history(
        {"event": "join", "step": 2, "boot_secs": {"7": 1.0}, "names": ["n3"]},
        {"event": "pause", "step": 2, "reason": "n3 joined"},
        {"event": "pause", "step": 3, "reason": "why"},
        {"event": "cost", "step": 3},
    )
    self.assertEqual([e["text"] for e in got.events], ["n3 joined", "why"])


_DEATH = dict(step=3, nodes=[1], names=["n1"], victims=["0/1"])
_DEATH |= dict(heirs=["n0"], rung="shadow", pause_secs=0.5)


def owner(name, *places):
  return facts.make_card(name, "a", "owner", places)


def arrange(living, *recoveries, last_places=None, gone=()):
  met = {n: member(n, "b") for n in range(10)}
  cards = facts.arrange(living, recoveries, last_places=last_places or {}, met=met, gone=gone)
  return [(c["name"], c["row"], c["column"], c["text"]) for c in cards]


class CardsTest(absltest.TestCase):

  def test_the_dead_keep_their_place_until_it_is_taken(self):
    heir = owner("n0", "0/0", "0/1")
    said = "died in step 3; its shadow n0 took over"
    self.assertEqual(
        arrange([heir], _DEATH), [("n0", "pipeline 0", 0, ""), ("n1", "pipeline 0", 1, said)]
    )
    taken = [owner("n0", "0/0"), owner("n2", "0/1")]
    self.assertEqual(
        arrange(taken, _DEATH),
        [("n0", "pipeline 0", 0, ""), ("n2", "pipeline 0", 1, ""), ("n1", "gone", None, said)],
    )

  def test_places_of_nodes_that_died_together(self):
    both = _DEATH | {"nodes": [1, 3], "names": ["n1", "n3"], "victims": ["1/1", "0/1"]}
    places = {1: ["0/1"], 3: ["1/1"]}
    got = arrange([owner("n0", "0/0"), owner("n2", "1/0")], both, last_places=places)
    self.assertEqual(
        [c[:3] for c in got[1:]], [(f"n{n}", f"pipeline {n // 2}", n % 2) for n in (1, 2, 3)]
    )

  def test_who_comes_again_is_not_dead(self):
    again = facts.make_card("n1", "b", "spare")
    got = arrange([owner("n0", "0/0"), again], _DEATH, gone=[1])
    self.assertEqual([c[:2] for c in got], [("n0", "pipeline 0"), ("n1", "spares")])

  def test_a_death_that_is_not_dealt_with_yet(self):
    got = arrange([owner("n0", "0/0")], last_places={1: ["0/1"]}, gone=[1])
    self.assertEqual(got[1], ("n1", "pipeline 0", 1, "gone"))

  def test_only_the_last_dead_are_shown(self):
    many = [_DEATH | {"step": n, "nodes": [n], "names": [f"n{n}"]} for n in range(1, 10)]
    got = arrange([owner("n0", "0/0", "0/1")], *many)
    self.assertEqual([c[0] for c in got], ["n0", "n9", "n8", "n7", "n6", "n5", "n4", "n3"])
