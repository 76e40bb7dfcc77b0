"""A run and its simulation side by side, from made-up logs."""

import dataclasses
import json

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.experiments import beside
from bamboo_jax.sim import loop, speed, times as times_lib
from bamboo_jax.traces import scale, trace as trace_lib
from bamboo_jax.training.setup import accept
from tests import folders, layouts, profiles, run_files, tiny
from tests.recovery import durations_test

# Two nodes train for 11 steps of 2 s; one dies in the next, which takes 3 s; 5
# more take 4 s; another comes, and pauses the next for 1 s; 5 more of 2 s.
_STEPS = [2.0] * 11 + [3.0] + [4.0] * 5 + [3.0] + [2.0] * 5
_LOSS, _JOIN = 12, 18
_USUAL = config_lib.DurationsSection()


def make_log(*, dead="n1"):
  totals, lines = account_lib.Account(), []
  for step, secs in enumerate(_STEPS, 1):
    num_nodes = 1 if _LOSS <= step < _JOIN else 2
    parts = account_lib.NodeTime(
        useful=0.5 * num_nodes * secs,
        bubble=0.5 * num_nodes * secs,
        idle=21.0 if step == _JOIN else 0.0,
    )
    totals += account_lib.Account(secs, parts.total, parts, 8)
    layout = {"at_secs": 100.0 + totals.secs}
    if step == 1:
      layout |= {"owners": [[0, 1]], "rung": "none"}
    elif step == _LOSS:
      layout |= {"owners": [[0, 0]], "rung": "shadow"}
      recovery = durations_test.RECOVERY | {"step": step, "event": "recovery"}
      recovery |= {"view_at_secs": 123.0, "ready_at_secs": 123.5}
      lines.append(recovery | {"victims": ["0/1"], "names": [dead]})
    elif step == _JOIN:
      boots = {"boot_secs": {"2": 21.0}}
      lines.append({"step": step, "event": "join", **boots})
      layout |= {"owners": [[0, 2]], "rung": "repair"}
    if "owners" in layout:
      lines.append({"step": step, "event": "layout", **layout})
    account = {"account": totals.to_line()}
    lines.append({"step": step, "step_ms": 1e3 * secs, **account})
  nodes = [
      {"event": "start", "name": "n0", "node": "a", "at_secs": 90.0},
      {"event": "start", "name": "n1", "node": "b", "at_secs": 90.0},
      {"event": "remove", "name": "n1", "node": "b", "at_secs": 122.9},
      {"event": "start", "name": "n2", "node": "c", "at_secs": 123.9},
  ]
  return lines, nodes


def make_policy(measured, *, num_stages=2, is_measured=True):
  durations, costs = measured
  rules = layouts.make_rules(num_stages, 1, layer_secs=0.1)
  predicted = speed.ProfileSpeed(
      layouts.make_profile(num_stages, layer_secs=0.1),
      num_microbatches=4,
      microbatch_size=2,
      redundant=config_lib.RedundancySection("lazy"),
  )
  if is_measured:
    whole = rules.planner.fresh(range(num_stages), {})
    predicted = times_lib.MeasuredSpeed(predicted, costs, whole=whole)
  times = times_lib.PipelineTimes(predicted, durations, drops=False, profile=None)
  return loop.Policy("predicted", rules.ladder, rules.planner, times)


class ValidationTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.course = beside.make_times(*make_log())
    self.measured = beside.measure(self.course, _USUAL)

  def test_what_a_log_says(self):
    run = self.course
    self.assertLen(run.steps, len(_STEPS) - 1)
    self.assertEqual(
        [(e.secs, e.rung, e.pause_secs) for e in run.events],
        [(20.0, "shadow", 1.0), (43.0, "repair", 1.0)],
    )
    self.assertAlmostEqual(run.events[0].detect_secs, 0.6)
    self.assertEqual(run.account.secs, 56.0)
    # From 102 on: to the end, to 122.9, and from 123.9 on, also while it boots.
    self.assertAlmostEqual(run.account.node_secs, 56.0 + 20.9 + 34.1, places=6)

  def test_a_death_that_no_trace_has_caused_is_not_timed(self):
    lines, nodes = make_log()
    later = [n | {"at_secs": 123.1} if n["event"] == "remove" else n for n in nodes]
    for log in (make_log(dead="n0"), (lines, later)):
      run = beside.make_times(*log)
      self.assertTrue(run.events[0].is_loss)
      self.assertIsNone(run.events[0].detect_secs)
      self.assertEqual(beside.measure(run, _USUAL)[0].detect_secs, _USUAL.detect_secs)

  def test_a_pause_without_usual_steps_near_is_not_known(self):
    lines, nodes = make_log()
    run = beside.make_times(lines[: _LOSS + 3], nodes)  # None after the death.
    self.assertEqual([e.pause_secs for e in run.events], [1.0])
    first = next(i for i, l in enumerate(lines) if l["step"] == _LOSS - 1)
    begin = [dict(lines[0], step=_LOSS - 1)]  # None before it.
    run = beside.make_times(begin + lines[first:], nodes)
    self.assertEqual([e.pause_secs for e in run.events], [None, 1.0])
    side = beside.charge(run, profiles.PRICE, market="spot")
    self.assertIsNone(side.pause_secs)
    rows = beside.compare(side, side)
    self.assertEqual([row[2] for row in rows if "pause" in row[0]], [None, None, 1.0])

  def test_measures(self):
    durations, steps = self.measured
    self.assertEqual(durations.boot_secs, 21.0)
    self.assertAlmostEqual(durations.detect_secs, 0.6)
    self.assertEqual(durations.repair_secs, 1.0)
    self.assertEqual(
        [(size[0], s.secs, s.shares.useful) for size, s in steps.items()],
        [(2, 2.0, 0.5), (1, 4.0, 0.5)],
    )

  def measure_events(self, events, **changes):
    return beside.measure(self.course._replace(events=events, **changes), _USUAL)[0]

  def test_pauses_are_those_of_their_rung(self):
    first, repair = self.course.events
    more = [dataclasses.replace(repair, rung="reconfigure", pause_secs=secs) for secs in (3.0, 5.0)]
    durations = self.measure_events((first, repair, *more))
    self.assertEqual(durations.repair_secs, 1.0)
    self.assertEqual(durations.reconfigure_secs, 4.0)
    self.assertEqual(self.measured[0].reconfigure_secs, 1.0)

  def test_what_never_happened_takes_the_usual_time(self):
    durations = self.measure_events((), boot_secs=None)
    for name in ("boot_secs", "detect_secs", "repair_secs", "reconfigure_secs"):
      self.assertEqual(getattr(durations, name), getattr(_USUAL, name))

  def test_predicts_the_run_that_it_was_measured_on(self):
    events = [(20_900, "remove", "b"), (21_900, "add", "c")]
    replay = scale.Replay(("a", "b"), tuple(trace_lib.Event(*e) for e in events), 56_000)
    policy = make_policy(self.measured)
    run = beside.charge(self.course, profiles.PRICE, market="spot")
    predicted, _ = beside.predict(replay, policy, profiles.PRICE, secs=run.account.secs)
    table = {what: (off, same) for what, _, _, off, same in beside.compare(predicted, run)}
    self.assertEqual(table["event 0: shadow, at s"][1], "yes")
    self.assertEqual(table["event 1: repair, at s"][1], "yes")
    self.assertLen(predicted.events, 2)
    self.assertLess(abs(table["event 0: shadow, at s"][0]), 5.0)
    self.assertAlmostEqual(predicted.num_steps, run.num_steps, delta=1)
    self.assertLess(abs(table["dollars"][0]), 1.0)
    self.assertLess(abs(table["useful, %"][0]), 2.0)

  def test_replicas_alone_are_no_event(self):
    policy = make_policy(self.measured, num_stages=3, is_measured=False)
    first = tuple(f"a/{i}" for i in range(3))
    lost = (trace_lib.Event(20_000, "remove", "a/2"),)
    replay = scale.Replay(first, lost, 60_000)
    side, outcome = beside.predict(replay, policy, profiles.PRICE, secs=60.0)
    self.assertIn("repair", [m.rung for m in outcome.moments])
    self.assertEqual([e.rung for e in side.events], ["shadow"])

  def write_run(self, lines, nodes):
    folders.write_lines(self.folder / "nodes.jsonl", nodes)
    config = tiny.make_config(redundancy__mode="lazy", cost__instance="p3.2xlarge")
    return run_files.write(self.folder, lines, config=accept.accept(config).to_json())

  def test_when_nodes_came_and_went(self):
    replay = self.course.replay
    self.assertEqual((replay.first, replay.duration_ms), (("a", "b"), 56_000))
    self.assertEqual([*map(str, replay.events)], ["20900,remove,b", "21900,add,c"])
    lines, nodes = make_log()
    dead = {"name": "n9", "node": "b"}  # In a first life of the run.
    before = [dead | {"event": e, "at_secs": s} for e, s in (("start", 1.0), ("remove", 9.0))]
    self.assertEqual(beside.make_times(lines, before + nodes).replay, replay)
    folder = self.write_run(lines, nodes[:2])  # Nothing removed it.
    with self.assertRaisesRegex(ValueError, "Node n1 of .* died in step 12, but not by --trace"):
      beside.run(folder, workdir=folder / "out")

  def test_a_run_of_another_version(self):
    folder = self.write_run(*make_log())
    config = json.loads((folder / "config.json").read_text())
    config["study"] = {"of": "another version"}
    (folder / "config.json").write_text(json.dumps(config))
    found = beside.read_config(folder)
    self.assertEqual(found.redundancy.mode, "lazy")
    self.assertEqual(found.model.options, config["model"]["options"])
    config["pipeline"]["head"] = "forward"
    (folder / "config.json").write_text(json.dumps(config))
    with self.assertRaisesRegex(ValueError, "not of this version: config.pipeline.head is gone"):
      beside.read_config(folder)

  def test_damaged_files(self):
    lines, nodes = make_log()
    without_layout = [line for line in lines if line.get("event") != "layout"]
    for name, found, message in (
        ("metrics.jsonl", [], "/metrics.jsonl is not the log of a run .*at least two steps"),
        (
            "metrics.jsonl",
            map(json.dumps, without_layout),
            "/metrics.jsonl is not the log of a run",
        ),
        ("metrics.jsonl", ["x"] * 3, "Line 1 of .*/metrics.jsonl is not a JSON"),
        ("nodes.jsonl", ["{}"], "Line 1 of .*/nodes.jsonl is not an event of a node: {}"),
        ("nodes.jsonl", [json.dumps(nodes[0]), "{"], "Line 2 of .*/nodes.jsonl is not an event"),
    ):
      folder = self.write_run(lines, nodes)
      (folder / name).write_text("".join(f"{line}\n" for line in found))
      with self.assertRaisesRegex(ValueError, message):
        beside.run(folder, workdir=folder / "out")

  def test_from_the_files_of_a_run_that_goes_on(self):  # Imports JAX and traces, 3 s.
    folder = self.write_run(*make_log())
    with folders.printed():
      said = beside.run(folder, workdir=folder / "out")
    self.assertRegex(said, "^note: .* has not ended: this is about its first 22 steps")
    self.assertIn("| event 0: shadow, at s |", said)
    self.assertTrue((folder / "out/run_predicted.png").exists())
    found = json.loads((folder / "out/report.json").read_text())
    self.assertEqual([run["head"]["run"] for run in found["runs"]], ["predicted", "measured"])
    events = [row[0] for row in found["tables"]["beside"]["rows"] if row[0].endswith(", at s")]
    self.assertEqual(events, ["event 0: shadow, at s", "event 1: repair, at s"])
    measured = {row[0]: row[2] for row in found["tables"]["runs"]["rows"]}
    self.assertEqual(measured["steps"], self.course.num_steps)  # Without the first.
    self.assertNotIn("tokens per second", measured)

  def test_other_owners_are_named(self):
    run = beside.charge(self.course, profiles.PRICE, market="spot")
    first, second = run.events
    own = lambda new: [dataclasses.replace(e, owners=new(e.owners)) for e in run.events]
    more = ("7", "8")  # Of another pipeline.
    for ours, theirs, want in (
        ([first, dataclasses.replace(second, owners=(("2", "0"),))], run.events, ["yes", "no"]),
        (own(lambda o: (more, *o)), own(lambda o: (*o, more)), ["yes", "yes"]),
        (own(lambda o: (("9",),)), run.events, ["no", "no"]),
        ([first], run.events, ["yes", "no"]),
    ):
      rows = beside.compare(run._replace(events=ours), run._replace(events=theirs))
      self.assertEqual([same for *_, same in rows if same], want)
    self.assertIn(["event 1", None, None, None, "no"], rows)
