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
from bamboo_jax.metrics import jsonl, table as table_lib
from bamboo_jax.report import contents
from bamboo_jax.report.live import facts
from bamboo_jax.sim import loop, speed as speed_lib, times as times_lib
from bamboo_jax.traces import scale, trace as trace_lib

_ORDERS = 1000  # Maximum number of orders of pipelines that are tried.
_NUM_FIRST = 5  # Steps during which programs are still being loaded.
_NUM_NEAR = 20  # Steps nearby that estimate the normal time of a step.
_NOTE = "The error is in percent of what was measured; of shares, in percentage points."
# What `nodes.jsonl` records, as events of a trace.
_KINDS = {"start": "add", "remove": "remove", "notice": "notice"}
_COLUMNS = ("what", "predicted", "measured", "off", "same")

Account = account_lib.Account
Line = Mapping[str, Any]
Owners = tuple[tuple[str, ...], ...]
# The durations of a run, and the mean cost of its steps by numbers of nodes and pipelines.
Measured = tuple[config_lib.DurationsSection, Mapping[tuple[int, int], times_lib.StepCost]]


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


# Its account, and the numbers of its nodes and pipelines; None: something happened in it.
TimedStep = tuple[Account, tuple[int, int] | None]


class Course(NamedTuple):
  """A run, or its simulation, from the first step on.

  Attributes:
    start_secs: From the start of its nodes to the first step.
    steps: Of a run.
    replay: When its nodes came and went, by their names in the trace; None: it is simulated.
    strangers: Step and name of each death that the launcher has not caused.
  """

  num_steps: float
  events: tuple[OwnerChange, ...]
  boot_secs: float | None
  account: Account
  start_secs: float = 0.0
  steps: Sequence[TimedStep] = ()
  replay: scale.Replay | None = None
  strangers: Sequence[tuple[int, str]] = ()

  @property
  def pause_secs(self) -> float | None:
    """Sum of the pauses of all events, seconds; None if one is unknown."""
    found = [event.pause_secs for event in self.events]
    return None if None in found else sum(secs for secs in found if secs is not None)


def read_times(workdir: pathlib.Path) -> Course:
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


def make_times(lines: Sequence[Line], nodes: Sequence[Line]) -> Course:
  """Returns the times in the lines of a log.

  `nodes` are the events that the launcher recorded: nodes that it started and
  removed. A node that has not joined yet counts as idle.
  """
  of = lambda event: (line for line in lines if line.get("event") == event)
  recoveries = {line["step"]: line for line in of("recovery")}
  layouts = {line["step"]: line for line in of("layout")}
  told = [(l["step"], a) for l in lines if "event" not in l and (a := account_lib.read(l))]
  if len(told) < 2:
    raise ValueError("The log must have at least two steps.")
  first_step, first = told[0]
  owners, begin_secs = (layouts[first_step][key] for key in ("owners", "at_secs"))
  kills = {n["name"]: n["at_secs"] for n in nodes if n["event"] == "remove"}
  steps: list[TimedStep] = []
  changes: list[tuple[int, Line]] = []  # The index of a step that begins with another layout.
  for (_, before), (step, account) in itertools.pairwise(told):
    layout, is_plain = layouts.get(step), step not in recoveries
    if layout is not None and layout["owners"] != owners:
      owners, is_plain = layout["owners"], False
      changes.append((len(steps), layout))
    size = (len({n for row in owners for n in row}), len(owners))
    steps.append((subtract(account, before), size if is_plain else None))
  events = []
  for index, change in changes:
    recovery, detect_secs = recoveries.get(change["step"]), None
    if recovery is not None and recovery["ready_at_secs"] is not None:
      view_secs, names = recovery["view_at_secs"], recovery["names"]
      killed = [kills[n] for n in names if kills.get(n, math.inf) <= view_secs]
      if len(killed) == len(names):
        detect_secs = recovery["ready_at_secs"] - min(killed)
    near = steps[index + 1 :] if recovery is None else steps[:index][::-1]
    plain = [account.secs for account, size in near if size][:_NUM_NEAR]
    events.append(
        OwnerChange(
            secs=math.fsum(account.secs for account, _ in steps[:index]),
            rung=change["rung"],
            owners=tuple(tuple(map(str, row)) for row in change["owners"]),
            pause_secs=steps[index][0].secs - statistics.fmean(plain) if plain else None,
            is_loss=recovery is not None,
            detect_secs=detect_secs,
        )
    )
  whole = subtract(told[-1][1], first)
  end_secs = begin_secs + whole.secs
  paid_secs = sum(
      max(0.0, min(kills.get(n["name"], end_secs), end_secs) - max(n["at_secs"], begin_secs))
      for n in nodes
      if n["event"] == "start"
  )
  unseen_secs = max(0.0, paid_secs - whole.node_secs)
  replay = [
      (round(1e3 * (n["at_secs"] - begin_secs)), kind, n["node"] or n["name"])
      for n in nodes
      if (kind := _KINDS.get(n["event"]))
  ]
  first_nodes: dict[str, None] = {}  # Others have died before, in a run that started again.
  for at_ms, kind, node in replay:
    if at_ms <= 0 and kind == "add":
      first_nodes[node] = None
    elif at_ms <= 0 and kind == "remove":
      first_nodes.pop(node, None)
  boots = [secs for join in of("join") for secs in join["boot_secs"].values()]
  return Course(
      len(steps),
      tuple(events),
      statistics.fmean(boots) if boots else None,
      whole + Account(0.0, unseen_secs, account_lib.NodeTime(idle=unseen_secs)),
      start_secs=first.secs,
      steps=steps,
      replay=scale.Replay(
          tuple(first_nodes),
          tuple(trace_lib.Event(*event) for event in replay if event[0] > 0),
          round(1e3 * whole.secs),
      ),
      strangers=[
          (step, name) for step, r in recoveries.items() for name in r["names"] if name not in kills
      ],
  )


def subtract(later: Account, earlier: Account) -> Account:
  parts = zip(later.node_time, earlier.node_time, strict=True)
  return Account(
      later.secs - earlier.secs,
      later.node_secs - earlier.node_secs,
      account_lib.NodeTime(*(max(0.0, a - b) for a, b in parts)),
      later.num_samples - earlier.num_samples,
  )


def measure(run: Course, usual: config_lib.DurationsSection) -> Measured:
  """Returns the times of a run for the simulator; `usual` are those of what never happened."""
  by_size: dict[tuple[int, int], tuple[list[Account], list[Account]]] = {}
  for index, (account, size) in enumerate(run.steps):
    if size:
      later, first = by_size.setdefault(size, ([], []))
      (first if index < _NUM_FIRST else later).append(account)
  costs = {}
  for size, (later, first) in by_size.items():
    accounts = later or first
    secs = math.fsum(a.secs for a in accounts)
    parts = {
        kind: sum(getattr(a.node_time, kind) for a in accounts)
        for kind in ("useful", "communication", "redundant")
    }
    costs[size] = times_lib.StepCost(
        secs / len(accounts),
        accounts[0].num_samples,
        shares=times_lib.split_time(whole=size[0] * secs, **parts),
    )
  mean = lambda found, other: statistics.fmean(found) if found else other
  boot_secs = usual.boot_secs if run.boot_secs is None else run.boot_secs
  changes = [
      (e.rung, max(0.0, e.pause_secs))
      for e in run.events
      if not e.is_loss and e.pause_secs is not None
  ]
  of = lambda rung: [s for r, s in changes if r == rung] or [s for _, s in changes]
  detects = [e.detect_secs for e in run.events if e.detect_secs is not None]
  durations = config_lib.DurationsSection(
      boot_secs=boot_secs,
      detect_secs=mean(detects, usual.detect_secs),
      repair_secs=mean(of("repair"), usual.repair_secs),
      reconfigure_secs=mean(of("reconfigure"), usual.reconfigure_secs),
      restart_secs=max(0.0, run.start_secs - boot_secs),
      load_secs=0.0,
      save_secs=0.0,
      stall_secs=0.0,
      save_every_secs=0.0,  # The steps include their stalls.
  )
  return durations, costs


def predict(
    replay: scale.Replay, policy: loop.Policy, price: prices_lib.Price, *, secs: float
) -> tuple[Course, loop.Outcome]:
  """Simulates a cluster under a trace for `secs` from the first step on."""
  durations = policy.times.durations
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
  has_joins = any(event.kind == "add" for event in later)
  course = Course(
      num_steps=outcome.num_steps,
      events=_events(outcome, before_secs),
      boot_secs=durations.boot_secs if has_joins else None,
      account=subtract(outcome.account, start.account),
  )
  return charge(course, price, market=policy.market), outcome


def charge(course: Course, price: prices_lib.Price, *, market: str) -> Course:
  """Returns a course with its cost; nodes are paid for the time of all kinds."""
  account = course.account
  whole = dataclasses.replace(account, node_secs=account.node_time.total)
  return course._replace(account=whole.charge(price, market=market))


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


def compare(predicted: Course, run: Course) -> list[list[Any]]:
  """Returns rows of `_COLUMNS`: predicted and measured values, with the error as "off".

  It is in percent of the measured value; for shares, in percentage points. The accounts
  have a price.
  """

  def row(what: str, ours: float | None, theirs: float | None, same: str = "") -> list[Any]:
    off = 100 * (ours / theirs - 1) if theirs and ours is not None else None
    return [what, ours, theirs, off, same]

  rows = [
      row("steps", predicted.num_steps, run.num_steps),
      row("pauses, s", predicted.pause_secs, run.pause_secs),
      row("dollars", predicted.account.usd, run.account.usd),
      row("boot, s", predicted.boot_secs, run.boot_secs),
  ]
  are_same = _compare_owners(predicted.events, run.events)
  pairs = itertools.zip_longest(predicted.events, run.events)
  for i, (ours, theirs) in enumerate(pairs):
    if ours is None or theirs is None:
      rows.append(row(f"event {i}", None, None, "no"))
      continue
    what, same = f"event {i}: {ours.rung}", "yes"
    if ours.rung != theirs.rung or not are_same[i]:
      what += f" {ours.owners}, measured {theirs.rung} {theirs.owners}"
      same = "no"
    rows.append(row(f"{what}, at s", ours.secs, theirs.secs, same))
    rows.append(row(f"{what}, pause s", ours.pause_secs, theirs.pause_secs))
  shares = predicted.account.node_time.shares()
  for kind, share in run.account.node_time.shares().items():
    ours, theirs = 100 * shares[kind], 100 * share
    rows.append([f"{kind}, %", ours, theirs, ours - theirs, ""])
  return rows


def _compare_owners(ours: Sequence[OwnerChange], theirs: Sequence[OwnerChange]) -> list[bool]:
  """Returns, for each event, whether both have the same owners after it.

  The order of pipelines is ignored: among nodes of a zone it depends on their
  order of arrival.
  """
  most = max((len(e.owners) for e in [*ours, *theirs]), default=0)
  best: list[bool] = []
  for order in itertools.islice(itertools.permutations(range(most)), _ORDERS):
    names, found = dict[str, str](), list[bool]()  # Names of nodes are learned.
    for a, b in zip(ours, theirs, strict=False):
      rows = [b.owners[k] for k in order if k < len(b.owners)]
      is_same = [*map(len, a.owners)] == [*map(len, rows)]
      if is_same:
        pairs = zip(itertools.chain(*a.owners), itertools.chain(*rows), strict=True)
        is_same = all(names.setdefault(one, other) == other for one, other in pairs)
        is_same = is_same and len({*names.values()}) == len(names)
      found.append(is_same)
    best = max(best or found, found, key=sum)
  return best


def read_config(folder: pathlib.Path) -> config_lib.Config:
  """Returns the config of a run; `ValueError` if another version wrote it, with what differs."""
  path = folder / "config.json"
  try:
    plain = json.loads(path.read_text())
    return config_lib.Config.read({**plain, "study": config_lib.StudySection().to_dict()})
  except (ValueError, TypeError, AttributeError) as error:
    raise ValueError(f"{path} is not of this version: {error}") from error


def make_policy(config: config_lib.Config, measured: Measured) -> loop.Policy:
  """Returns the rules of a run as a policy, with its measured times."""
  from bamboo_jax.training.setup import build  # Imports JAX.

  task = build.make_task(config, needs_data=False)
  profile = build.make_profile(config, task)
  plan, templates = build.plan_run(config, task, profile, is_cluster=True)
  rules = build.make_rules(config, plan, templates)
  speed = speed_lib.ProfileSpeed(
      profile,
      num_microbatches=plan.batch.total_microbatches,
      microbatch_size=plan.batch.microbatch_size,
      redundant=config.redundancy,
      reroute=rules.ladder.reroute,
  )
  durations, costs = measured
  whole = rules.planner.fresh(base.nodes(plan.num_pipelines * plan.num_stages), {})
  times = times_lib.PipelineTimes(
      times_lib.MeasuredSpeed(speed, costs, whole=whole),
      durations,
      drops=config.recovery.drop,
      profile=None,  # The durations include copies.
  )
  return loop.Policy("predicted", rules.ladder, rules.planner, times, market=config.cost.market)


def run(folder: pathlib.Path, *, workdir: pathlib.Path, formats: Sequence[str] = ("png",)) -> str:
  """Simulates the run in `folder`; writes tables and page to `workdir`, returns text."""
  if not (folder / "nodes.jsonl").exists():
    raise ValueError(
        f"There is no run of `bamboo cluster` in {folder}: no nodes.jsonl says when its nodes "
        "came and went."
    )
  config, course = read_config(folder), read_times(folder)
  price = prices_lib.find_or_standard(config.cost)
  for step, name in course.strangers[:1]:
    raise ValueError(
        f"Node {name} of {folder} died in step {step}, but not by --trace: a simulation does not "
        "know when."
    )
  policy = make_policy(config, measure(course, config.study.durations))
  text = report(workdir, course, policy, folder=folder, price=price, formats=formats)
  if not (folder / "summary.json").exists():
    text = (
        f"note: {folder} has not ended: this is about its first {len(course.steps)} steps\n{text}"
    )
  return text


def report(
    workdir: pathlib.Path,
    course: Course,
    policy: loop.Policy,
    *,
    folder: pathlib.Path,
    price: prices_lib.Price,
    formats: Sequence[str] = ("png",),
) -> str:
  """Predicts the run in `folder`; writes tables and page to `workdir`, returns text."""
  real = charge(course, price, market=policy.market)
  assert real.replay is not None
  predicted, outcome = predict(real.replay, policy, price, secs=real.account.secs)
  rows = compare(predicted, real)
  comparison = table_lib.make("Predicted and measured", _COLUMNS, rows, _NOTE)
  ours, theirs = contents.simulated("predicted", outcome), contents.read_run(folder, {})
  theirs["head"]["run"] = "measured"
  for value, one in ((ours, predicted), (theirs, real)):
    # Tokens of the log are those of the whole run.
    since_first = {"steps": one.num_steps, "tokens_per_sec": None}
    value["figures"] |= facts.figures_of(one.account) | since_first
  found = contents.make(
      f"Prediction and outcome of {folder.name}", [ours, theirs], tables={"beside": comparison}
  )
  output.write_summary(workdir, comparison)
  contents.write(workdir, found, formats)
  return table_lib.to_markdown(comparison)
