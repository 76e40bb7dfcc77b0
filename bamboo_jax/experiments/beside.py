"""A recorded run beside its simulation, by events and by kinds of time.

The simulator is given the config of the run, so its ladder and planner; the times of
boots, deaths, changes and steps that were measured in it; and when its nodes came and
went. What is left to predict is the course: what is decided, and what that costs. Both
begin with the first step.
"""

from collections.abc import Sequence
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
from bamboo_jax.report import contents, run_times
from bamboo_jax.report.live import facts
from bamboo_jax.sim import decisions, loop, speed as speed_lib, times as times_lib
from bamboo_jax.traces import replay as replay_lib, trace as trace_lib

_ORDERS = 1000  # Maximum number of orders of pipelines that are tried.
_NUM_FIRST = 5  # Steps during which programs are still being loaded.


@dataclasses.dataclass(frozen=True)
class Side:
  """A run, or its simulation, from the first step on."""

  num_steps: float
  events: tuple[run_times.OwnerChange, ...]
  boot_secs: float | None
  account: account_lib.Account

  @property
  def pause_secs(self) -> float | None:
    """Sum of the pauses of all events, seconds; None if one is unknown."""
    found = [event.pause_secs for event in self.events]
    known = [secs for secs in found if secs is not None]
    return sum(known) if len(known) == len(found) else None


def measure(run: run_times.RunTimes, usual: config_lib.DurationsSection) -> times_lib.MeasuredTimes:
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
      tuple(_mean_step(later or first, *size) for size, (later, first) in by_size.items()),
  )


def _mean(found: Sequence[float], usual: float) -> float:
  return statistics.fmean(found) if found else usual


def _mean_step(
    steps: Sequence[account_lib.Totals], num_nodes: int, num_pipelines: int
) -> times_lib.SizedStep:
  secs = math.fsum(s.secs for s in steps)
  shares = {
      kind: sum(s.parts[i] for s in steps) / (num_nodes * secs)
      for i, kind in enumerate(account_lib.KINDS)
      if kind in ("useful", "communication", "redundant")
  }
  cost = times_lib.StepCost(secs=secs / len(steps), num_samples=steps[0].num_samples, **shares)
  return times_lib.SizedStep(num_nodes, num_pipelines, cost)


def of_run(run: run_times.RunTimes, price: prices_lib.Price, *, market: str) -> Side:
  """Returns a measured run in the form in which it is compared."""
  boots = run.boot_secs
  return Side(
      num_steps=len(run.steps),
      events=run.events,
      boot_secs=statistics.fmean(boots) if boots else None,
      account=_account(run.totals, price, market),
  )


class Predicted(NamedTuple):
  """A simulated run, for comparison with a real one, and its outcome."""

  side: Side
  outcome: loop.Outcome


def predict(
    replay: replay_lib.Replay, policy: loop.Policy, price: prices_lib.Price, *, secs: float
) -> Predicted:
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
  start = _simulate(first, start_ms, policy, price)
  outcome = _simulate(first + later, end_ms, policy, price)
  totals = run_times.subtract(_totals(outcome), _totals(start))
  has_joins = any(event.kind == "add" for event in later)
  side = Side(
      num_steps=outcome.num_steps,
      events=_events(outcome, before_secs),
      boot_secs=durations.boot_secs if has_joins else None,
      account=_account(totals, price, policy.market),
  )
  return Predicted(side, outcome)


def _simulate(
    events: Sequence[trace_lib.Event], end_ms: int, policy: loop.Policy, price: prices_lib.Price
) -> loop.Outcome:
  trace = trace_lib.Trace("replay", tuple(events), duration_ms=end_ms)
  return loop.simulate(trace, policy, price, keep_moments=True)


def _totals(outcome: loop.Outcome) -> account_lib.Totals:
  a = outcome.account
  parts = a.node_time.parts
  return account_lib.Totals(a.secs, a.node_secs, parts, a.num_samples)


def _account(
    totals: account_lib.Totals, price: prices_lib.Price, market: str
) -> account_lib.Account:
  whole = dataclasses.replace(totals, node_secs=math.fsum(totals.parts))
  return whole.account(price, market=market)


def _events(outcome: loop.Outcome, start_secs: float) -> tuple[run_times.OwnerChange, ...]:
  events, moments = [], outcome.moments
  first = next(i for i, m in enumerate(moments) if m.rung == "checkpoint")
  for i, moment in enumerate(moments[first + 1 :], first + 1):
    # Only replicas are made, which a run does not log.
    if moment.owners != moments[i - 1].owners:
      ends = [m.secs for m in moments[i:] if m.samples_per_sec]
      pause_secs = (ends[0] if ends else outcome.account.secs) - moment.secs
      what = (moment.rung, moment.owners, pause_secs)
      events.append(run_times.OwnerChange(moment.secs - start_secs, *what))
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


def _compare_owners(
    ours: Sequence[run_times.OwnerChange], theirs: Sequence[run_times.OwnerChange]
) -> list[bool]:
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


def _is_same(ours: run_times.Owners, theirs: run_times.Owners, names: dict[str, str]) -> bool:
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


def summarize(predicted: Side, run: Side) -> str:
  """Returns a line with the errors of steps, pauses and dollars in percent."""
  offs = [row["off"] or 0.0 for row in compare(predicted, run)[:3]]
  names = ("steps_off_pct", "pauses_off_pct", "dollars_off_pct")
  pairs = zip(names, offs, strict=True)
  return " ".join(f"{name}={off:.1f}" for name, off in pairs)


def read_config(folder: pathlib.Path) -> config_lib.Config:
  """Returns the config of a run; `ValueError` if another version wrote it, with what differs."""
  path = folder / "config.json"
  try:
    plain = json.loads(path.read_text())
    return config_lib.Config.read({**plain, "study": config_lib.StudySection().to_dict()})
  except (ValueError, TypeError, AttributeError) as error:
    raise ValueError(f"{path} is not of this version: {error}") from error


def find_replay(run: run_times.RunTimes, folder: pathlib.Path) -> replay_lib.Replay:
  """Returns when the nodes of a run came and went; `ValueError` if that is not known."""
  for line in jsonl.read_lines(folder / "metrics.jsonl"):
    if line.get("event") == "recovery" and (own := {*line["names"]} - {*run.removed}):
      raise ValueError(
          f"Node {min(own)} of {folder} died in step {line['step']}, but not by --trace: a "
          "simulation does not know when."
      )
  first, later = [], []
  for at_secs, kind, node in run.nodes:
    if at_secs <= 0:
      first.append(node)
    else:
      later.append(trace_lib.Event(round(1e3 * at_secs), kind, node))
  return replay_lib.Replay(tuple(first), tuple(later), round(1e3 * run.totals.secs))


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
  config, times = read_config(folder), run_times.read(folder)
  price = prices_lib.find(config.cost) or prices_lib.find(prices_lib.STANDARD)
  assert price is not None
  policy = make_policy(config, measure(times, config.study.durations))
  text = report(
      workdir,
      times,
      find_replay(times, folder),
      policy,
      folder=folder,
      price=price,
      formats=formats,
  )
  if not (folder / "summary.json").exists():
    text = f"note: {folder} has not ended: this is about its first {len(times.steps)} steps\n{text}"
  return text


def report(
    workdir: pathlib.Path,
    times: run_times.RunTimes,
    replay: replay_lib.Replay,
    policy: loop.Policy,
    *,
    folder: pathlib.Path,
    price: prices_lib.Price,
    formats: Sequence[str] = ("png",),
) -> str:
  """Predicts the run in `folder`; writes tables and page to `workdir`, returns text."""
  real = of_run(times, price, market=policy.market)
  predicted, outcome = predict(replay, policy, price, secs=real.account.secs)
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
  return f"{output.render_rows(rows)}\n{summarize(predicted, real)}"
