"""A recorded run beside its simulation, by events and by kinds of time.

The simulator is given the config of the run, so its ladder and planner; the times of
boots, deaths, changes and steps that were measured in it; and when its nodes came and
went. What is left to predict is the course: what is decided, and what that costs. Both
begin with the first step, when the replay of a trace begins; earlier steps compile.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import json
import math
import pathlib
import statistics
from typing import Any, NamedTuple

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import account as account_lib, prices as prices_lib
from bamboo_jax.experiments import output
from bamboo_jax.metrics import jsonl
from bamboo_jax.report import contents
from bamboo_jax.report.live import facts
from bamboo_jax.sim import decisions, loop, speed as speed_lib, times as times_lib
from bamboo_jax.traces import replay as replay_lib, trace as trace_lib

_ORDERS = 1000  # Maximum number of orders of pipelines that are tried.
_NUM_FIRST = 5  # Steps during which programs are still being loaded.
_NUM_NEAR = 20  # Steps nearby that estimate the normal time of a step.
# What `nodes.jsonl` records, as events of a trace.
_KINDS = {"start": "add", "remove": "remove", "notice": "notice"}
_IDLE = account_lib.KINDS.index("idle")

Owners = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class OwnerChange:
  """A change of the owners of stages, `secs` after the first step.

  Attributes:
    owners: For each pipeline, the node of each stage.
    pause_secs: How much longer the step took than steps nearby; None if all of
      these had changes of their own.
    is_loss: Whether nodes died.
    detect_secs: From the death until the rest of the step was planned; None
      without a death, or for deaths not caused by the launcher.
  """

  secs: float
  rung: str
  owners: Owners
  pause_secs: float | None
  is_loss: bool = False
  detect_secs: float | None = None


class TimedStep(NamedTuple):
  """A step, until the next one, and the size of the cluster; plain: nothing happened in it."""

  totals: account_lib.Totals
  num_nodes: int
  num_pipelines: int
  is_plain: bool


@dataclasses.dataclass(frozen=True)
class RunTimes:
  """A run.

  Attributes:
    start_secs: From the start of its nodes to the first step.
    replay: When its nodes came and went, by their names in the trace.
    strangers: Step and name of each death that the launcher has not caused.
  """

  start_secs: float
  steps: tuple[TimedStep, ...]
  events: tuple[OwnerChange, ...]
  boot_secs: tuple[float, ...]
  totals: account_lib.Totals
  replay: replay_lib.Replay
  strangers: tuple[tuple[int, str], ...] = ()


def read_times(workdir: pathlib.Path) -> RunTimes:
  """Returns the times of a run of `bamboo cluster`, also an aborted one.

  Raises `OSError` without a log, `ValueError` with the file if it has fewer than two steps
  or is damaged.
  """
  log, path = workdir / "metrics.jsonl", workdir / "nodes.jsonl"
  lines, nodes = jsonl.read_lines(log), []
  for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1):
    try:
      nodes.append(json.loads(text))
      _ = [nodes[-1][key] for key in ("event", "name", "at_secs")]
    except (ValueError, KeyError, TypeError):
      raise ValueError(f"Line {number} of {path} is not an event of a node: {text:.80}") from None
  try:
    return make_times(lines, nodes)
  except (ValueError, KeyError) as error:
    what = "is not the log of a run of `bamboo cluster`"
    raise ValueError(f"{log} {what}: {error!s:.200}") from error


def make_times(lines: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]) -> RunTimes:
  """Returns the times in the lines of a log.

  `nodes` are the events that the launcher recorded: nodes that it started and
  removed. A node that has not joined yet counts as idle.
  """
  recoveries = {l["step"]: l for l in lines if l.get("event") == "recovery"}
  joins = [l for l in lines if l.get("event") == "join"]
  layouts = {l["step"]: l for l in lines if l.get("event") == "layout"}
  entries = [*account_lib.entries(l for l in lines if "event" not in l)]
  if len(entries) < 2:
    raise ValueError("The log must have at least two steps.")
  first = entries[0]
  steps: list[TimedStep] = []
  changes: dict[int, Mapping[str, Any]] = {}
  owners = layouts[first.step]["owners"]
  for before, entry in itertools.pairwise(entries):
    layout = layouts.get(entry.step)
    is_changed = False
    if layout is not None and (is_changed := layout["owners"] != owners):
      owners = layout["owners"]
      changes[len(steps)] = layout
    steps.append(
        TimedStep(
            totals=subtract(entry.totals, before.totals),
            num_nodes=len({n for row in owners for n in row}),
            num_pipelines=len(owners),
            is_plain=not is_changed and entry.step not in recoveries,
        )
    )
  kills = {n["name"]: n["at_secs"] for n in nodes if n["event"] == "remove"}
  totals = subtract(entries[-1].totals, first.totals)
  begin_secs = layouts[first.step]["at_secs"]
  paid_secs = _lifetimes(nodes, kills, begin_secs, begin_secs + totals.secs)
  unseen_secs = max(0.0, paid_secs - totals.node_secs)
  replay = [
      (round(1e3 * (n["at_secs"] - begin_secs)), kind, n["node"] or n["name"])
      for n in nodes
      if (kind := _KINDS.get(n["event"]))
  ]
  return RunTimes(
      start_secs=first.totals.secs,
      steps=tuple(steps),
      events=tuple(
          _make_event(steps, i, change, recoveries.get(change["step"]), kills)
          for i, change in changes.items()
      ),
      boot_secs=tuple(s for j in joins for s in j["boot_secs"].values()),
      totals=dataclasses.replace(
          totals,
          node_secs=totals.node_secs + unseen_secs,
          parts=tuple(secs + unseen_secs * (i == _IDLE) for i, secs in enumerate(totals.parts)),
      ),
      replay=replay_lib.Replay(
          tuple(node for at_ms, _, node in replay if at_ms <= 0),
          tuple(trace_lib.Event(*event) for event in replay if event[0] > 0),
          round(1e3 * totals.secs),
      ),
      strangers=tuple(
          (step, name) for step, r in recoveries.items() for name in r["names"] if name not in kills
      ),
  )


def _make_event(
    steps: Sequence[TimedStep],
    index: int,
    change: Mapping[str, Any],
    recovery: Mapping[str, Any] | None,
    kills: Mapping[str, float],
) -> OwnerChange:
  """Returns the event of a step that began with another layout.

  Args:
    index: Of the step.
    change: Its layout, as in the log.
    recovery: In the same step, if the change follows from a loss.
    kills: When nodes were removed, by name.
  """
  is_loss = recovery is not None
  detect_secs = None
  if recovery is not None and recovery["ready_at_secs"] is not None:
    view_secs, names = recovery["view_at_secs"], recovery["names"]
    killed = [kills[n] for n in names if kills.get(n, math.inf) <= view_secs]
    if len(killed) == len(names):
      detect_secs = recovery["ready_at_secs"] - min(killed)
  near = steps[:index][::-1] if is_loss else steps[index + 1 :]
  plain = [s.totals.secs for s in near if s.is_plain][:_NUM_NEAR]
  pause_secs = steps[index].totals.secs - statistics.fmean(plain) if plain else None
  return OwnerChange(
      secs=math.fsum(s.totals.secs for s in steps[:index]),
      rung=change["rung"],
      owners=tuple(tuple(map(str, row)) for row in change["owners"]),
      pause_secs=pause_secs,
      is_loss=is_loss,
      detect_secs=detect_secs,
  )


def _lifetimes(
    nodes: Sequence[Mapping[str, Any]],
    kills: Mapping[str, float],
    begin_secs: float,
    end_secs: float,
) -> float:
  """Returns the summed lifetimes of nodes within a span of time."""
  lives: list[tuple[float, float]] = [
      (max(n["at_secs"], begin_secs), kills.get(n["name"], end_secs))
      for n in nodes
      if n["event"] == "start"
  ]
  return sum(max(0.0, min(last, end_secs) - first) for first, last in lives)


def subtract(later: account_lib.Totals, earlier: account_lib.Totals) -> account_lib.Totals:
  """Returns the difference of two totals."""
  parts = zip(later.parts, earlier.parts, strict=True)
  return account_lib.Totals(
      secs=later.secs - earlier.secs,
      node_secs=later.node_secs - earlier.node_secs,
      parts=tuple(max(0.0, a - b) for a, b in parts),
      num_samples=later.num_samples - earlier.num_samples,
  )


class Side(NamedTuple):
  """A run, or its simulation, from the first step on."""

  num_steps: float
  events: tuple[OwnerChange, ...]
  boot_secs: float | None
  account: account_lib.Account

  @property
  def pause_secs(self) -> float | None:
    """Sum of the pauses of all events, seconds; None if one is unknown."""
    found = [event.pause_secs for event in self.events]
    known = [secs for secs in found if secs is not None]
    return sum(known) if len(known) == len(found) else None


def measure(run: RunTimes, usual: config_lib.DurationsSection) -> times_lib.MeasuredTimes:
  """Returns the times of a run for the simulator; `usual` are those of what never happened."""
  by_size: dict[tuple[int, int], tuple[list[Any], list[Any]]] = {}
  for index, step in enumerate(run.steps):
    if step.is_plain:
      size = (step.num_nodes, step.num_pipelines)
      later, first = by_size.setdefault(size, ([], []))
      (first if index < _NUM_FIRST else later).append(step.totals)
  detects = [e.detect_secs for e in run.events if e.detect_secs is not None]
  boot_secs = _mean(run.boot_secs, usual.boot_secs)
  changes = [e for e in run.events if not e.is_loss and e.pause_secs is not None]
  of = lambda rung: [max(0.0, e.pause_secs or 0.0) for e in changes if e.rung == rung]
  any_secs = [max(0.0, e.pause_secs or 0.0) for e in changes]
  return times_lib.MeasuredTimes(
      config_lib.DurationsSection(
          boot_secs=boot_secs,
          detect_secs=_mean(detects, usual.detect_secs),
          repair_secs=_mean(of("repair") or any_secs, usual.repair_secs),
          reconfigure_secs=_mean(of("reconfigure") or any_secs, usual.reconfigure_secs),
          restart_secs=max(0.0, run.start_secs - boot_secs),
          load_secs=0.0,
          save_secs=0.0,
          stall_secs=0.0,
          save_every_secs=0.0,  # The steps include their stalls.
      ),
      {size: _mean_step(later or first, size[0]) for size, (later, first) in by_size.items()},
  )


def _mean(found: Sequence[float], usual: float) -> float:
  return statistics.fmean(found) if found else usual


def _mean_step(steps: Sequence[account_lib.Totals], num_nodes: int) -> times_lib.StepCost:
  secs = math.fsum(s.secs for s in steps)
  shares = {
      kind: sum(s.parts[i] for s in steps) / (num_nodes * secs)
      for i, kind in enumerate(account_lib.KINDS)
      if kind in ("useful", "communication", "redundant")
  }
  return times_lib.StepCost(secs=secs / len(steps), num_samples=steps[0].num_samples, **shares)


def of_run(run: RunTimes, price: prices_lib.Price, *, market: str) -> Side:
  """Returns a measured run in the form in which it is compared."""
  boots = run.boot_secs
  boot_secs = statistics.fmean(boots) if boots else None
  return Side(len(run.steps), run.events, boot_secs, _account(run.totals, price, market))


def predict(
    replay: replay_lib.Replay, policy: loop.Policy, price: prices_lib.Price, *, secs: float
) -> tuple[Side, loop.Outcome]:
  """Simulates a cluster under a trace for `secs` from the first step on."""
  durations = policy.durations
  before_secs = durations.boot_secs + durations.restart_secs + durations.load_secs
  start_ms, end_ms = round(1e3 * before_secs), round(1e3 * (before_secs + secs))
  first = [trace_lib.Event(0, "add", node) for node in replay.first]
  later = [
      dataclasses.replace(event, time_ms=start_ms + event.time_ms)
      for event in replay.events
      if start_ms + event.time_ms < end_ms
  ]
  start, outcome = (
      loop.simulate(
          trace_lib.Trace("replay", tuple(events), duration_ms), policy, price, keep_moments=True
      )
      for events, duration_ms in ((first, start_ms), (first + later, end_ms))
  )
  totals = subtract(_totals(outcome), _totals(start))
  has_joins = any(event.kind == "add" for event in later)
  side = Side(
      num_steps=outcome.num_steps,
      events=_events(outcome, before_secs),
      boot_secs=durations.boot_secs if has_joins else None,
      account=_account(totals, price, policy.market),
  )
  return side, outcome


def _totals(outcome: loop.Outcome) -> account_lib.Totals:
  a = outcome.account
  return account_lib.Totals(a.secs, a.node_secs, a.node_time.parts, a.num_samples)


def _account(
    totals: account_lib.Totals, price: prices_lib.Price, market: str
) -> account_lib.Account:
  whole = dataclasses.replace(totals, node_secs=math.fsum(totals.parts))
  return whole.account(price, market=market)


def _events(outcome: loop.Outcome, start_secs: float) -> tuple[OwnerChange, ...]:
  events, moments = [], outcome.moments
  first = next(i for i, m in enumerate(moments) if m.rung == "checkpoint")
  for i, moment in enumerate(moments[first + 1 :], first + 1):
    # Only replicas are made, which a run does not log.
    if moment.owners != moments[i - 1].owners:
      ends = [m.secs for m in moments[i:] if m.samples_per_sec]
      pause_secs = (ends[0] if ends else outcome.account.secs) - moment.secs
      what = (moment.rung, moment.owners, pause_secs)
      events.append(OwnerChange(moment.secs - start_secs, *what))
  return tuple(events)


def compare(predicted: Side, run: Side) -> list[dict[str, Any]]:
  """Returns rows of predicted and measured values, with the error as "off".

  It is in percent of the measured value; for shares, in percentage points.
  """
  rows = [
      _row("steps", predicted.num_steps, run.num_steps),
      _row("pauses, s", predicted.pause_secs, run.pause_secs),
      _row("dollars", predicted.account.usd, run.account.usd),
      _row("boot, s", predicted.boot_secs, run.boot_secs),
  ]
  are_same = _compare_owners(predicted.events, run.events)
  pairs = itertools.zip_longest(predicted.events, run.events)
  for i, (ours, theirs) in enumerate(pairs):
    if ours is None or theirs is None:
      rows.append(_row(f"event {i}", None, None, same="no"))
      continue
    what, same = f"event {i}: {ours.rung}", "yes"
    if ours.rung != theirs.rung or not are_same[i]:
      what += f" {ours.owners}, measured {theirs.rung} {theirs.owners}"
      same = "no"
    rows.append(_row(f"{what}, at s", ours.secs, theirs.secs, same=same))
    rows.append(_row(f"{what}, pause s", ours.pause_secs, theirs.pause_secs))
  shares = predicted.account.node_time.shares()
  for kind, share in run.account.node_time.shares().items():
    row = _row(f"{kind}, %", 100 * shares[kind], 100 * share)
    rows.append(row | {"off": 100 * (shares[kind] - share)})
  return rows


def _compare_owners(ours: Sequence[OwnerChange], theirs: Sequence[OwnerChange]) -> list[bool]:
  """Returns, for each event, whether both have the same owners after it.

  The order of pipelines is ignored: among nodes of a zone it depends on their
  order of arrival.
  """
  most = max((len(e.owners) for e in [*ours, *theirs]), default=0)
  best: list[bool] = []
  for order in itertools.islice(itertools.permutations(range(most)), _ORDERS):
    names: dict[str, str] = {}
    found = [
        _is_same(a.owners, tuple(b.owners[k] for k in order if k < len(b.owners)), names)
        for a, b in zip(ours, theirs, strict=False)
    ]
    best = max(best or found, found, key=sum)
  return best


def _is_same(ours: Owners, theirs: Owners, names: dict[str, str]) -> bool:
  """Returns whether the owners are the same; learns the names of nodes."""
  if [*map(len, ours)] != [*map(len, theirs)]:
    return False
  ours, theirs = itertools.chain(*ours), itertools.chain(*theirs)
  pairs = zip(ours, theirs, strict=True)
  same = all(names.setdefault(a, b) == b for a, b in pairs)
  return same and len({*names.values()}) == len(names)


def _row(
    what: str, predicted: float | None, measured: float | None, *, same: str = ""
) -> dict[str, Any]:
  off = None
  if measured and predicted is not None:
    off = 100 * (predicted / measured - 1)
  return dict(what=what, predicted=predicted, measured=measured, off=off, same=same)


def summarize(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns a line with the errors of steps, pauses and dollars in percent."""
  pairs = zip(("steps", "pauses", "dollars"), rows, strict=False)
  return " ".join(f"{name}_off_pct={row['off'] or 0.0:.1f}" for name, row in pairs)


def read_config(folder: pathlib.Path) -> config_lib.Config:
  """Returns the config of a run; `ValueError` if another version wrote it, with what differs."""
  path = folder / "config.json"
  try:
    plain = json.loads(path.read_text())
    return config_lib.Config.read({**plain, "study": config_lib.StudySection().to_dict()})
  except (ValueError, TypeError, AttributeError) as error:
    raise ValueError(f"{path} is not of this version: {error}") from error


def make_policy(config: config_lib.Config, measured: times_lib.MeasuredTimes) -> loop.Policy:
  """Returns the rules of a run as a policy, with its measured times."""
  from bamboo_jax.training.setup import build  # Imports JAX.

  profile = build.make_profile(config, build.make_task(config, needs_data=False))
  templates = build.make_templates(config, profile, is_cluster=True)
  num_stages = templates[0].partition.num_stages if templates else None
  plan = build.make_plan(config, profile, is_cluster=True, num_stages=num_stages)
  rules = build.make_rules(config, plan, templates)
  speed = speed_lib.ProfileSpeed(
      profile,
      num_microbatches=plan.batch.total_microbatches,
      microbatch_size=plan.batch.microbatch_size,
      redundant=config.redundancy,
      reroute=rules.ladder.reroute,
  )
  whole = rules.planner.fresh(base.nodes(plan.num_pipelines * plan.num_stages), {})
  times = times_lib.PipelineTimes(
      times_lib.MeasuredSpeed(speed, measured, whole=whole),
      measured.durations,
      drops=config.recovery.drop,
      profile=None,  # The durations include copies.
  )
  decider = decisions.Decider(rules.ladder, rules.planner, times)
  return loop.Policy("predicted", decider, measured.durations, market=config.cost.market)


def run(folder: pathlib.Path, *, workdir: pathlib.Path, formats: Sequence[str] = ("png",)) -> str:
  """Simulates the run in `folder`; writes tables and page to `workdir`, returns text."""
  if not (folder / "nodes.jsonl").exists():
    raise ValueError(
        f"There is no run of `bamboo cluster` in {folder}: no nodes.jsonl says when its nodes "
        "came and went."
    )
  config, times = read_config(folder), read_times(folder)
  price = prices_lib.find(config.cost) or prices_lib.find(prices_lib.STANDARD)
  assert price is not None
  if times.strangers:
    step, name = times.strangers[0]
    raise ValueError(
        f"Node {name} of {folder} died in step {step}, but not by --trace: a simulation does not "
        "know when."
    )
  policy = make_policy(config, measure(times, config.study.durations))
  text = report(workdir, times, policy, folder=folder, price=price, formats=formats)
  if not (folder / "summary.json").exists():
    text = f"note: {folder} has not ended: this is about its first {len(times.steps)} steps\n{text}"
  return text


def report(
    workdir: pathlib.Path,
    times: RunTimes,
    policy: loop.Policy,
    *,
    folder: pathlib.Path,
    price: prices_lib.Price,
    formats: Sequence[str] = ("png",),
) -> str:
  """Predicts the run in `folder`; writes tables and page to `workdir`, returns text."""
  real = of_run(times, price, market=policy.market)
  predicted, outcome = predict(times.replay, policy, price, secs=real.account.secs)
  rows = compare(predicted, real)
  output.write_summary(workdir, rows)
  lines = [
      (r["what"], r["measured"], (r["predicted"],), {"no": "not the same"}.get(r["same"], ""))
      for r in rows
  ]
  comparison = contents.compare(
      "Predicted and measured", lines, columns=["predicted"], source="the run", label="measured"
  )
  ours, theirs = contents.simulated("predicted", outcome), contents.read_run(folder, {})
  theirs["head"]["run"] = "measured"
  for value, side in ((ours, predicted), (theirs, real)):
    value["figures"] |= facts.figures_of(side.account)
  found = contents.make(
      f"Prediction and outcome of {folder.name}", [ours, theirs], tables={"beside": comparison}
  )
  contents.write(workdir, found, formats)
  return f"{output.render_rows(rows)}\n{summarize(rows)}"
