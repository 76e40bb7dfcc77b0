"""Compares a run with its simulation, by events and by kinds of time.

Both begin with the first step. The simulator is given the ladder and the
planner of the run, the times of a cluster that were measured before, and the
trace; of the run itself it knows only the end.
"""

from collections.abc import Callable, Sequence
import dataclasses
import itertools
import math
import pathlib
import statistics
from typing import Any, NamedTuple

from bamboo_jax.accounting import account as account_lib, ledger as ledger_lib, prices as prices_lib
from bamboo_jax.experiments import output
from bamboo_jax.report import contents, run_times
from bamboo_jax.report.live import facts
from bamboo_jax.sim import loop, times as times_lib
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


def measure(run: run_times.RunTimes) -> times_lib.MeasuredTimes:
  """Returns the times of a cluster for the simulator, from a run.

  Raises `ValueError` if no node of it was killed by its trace, or none joined.
  """
  detects = [e.detect_secs for e in run.events if e.detect_secs is not None]
  changes = [e for e in run.events if not e.is_loss and e.pause_secs is not None]
  if not detects or not changes or not run.boot_secs:
    raise ValueError(
        "The run must lose a node that its trace removes, and another must " "take a place."
    )
  boot_secs = statistics.fmean(run.boot_secs)
  by_size: dict[tuple[int, int], tuple[list[Any], list[Any]]] = {}
  for index, step in enumerate(run.steps):
    if step.is_plain:
      size = (step.num_nodes, step.num_pipelines)
      usual, first = by_size.setdefault(size, ([], []))
      (first if index < _NUM_FIRST else usual).append(step.totals)
  return times_lib.MeasuredTimes(
      times_lib.Durations(
          boot_secs=boot_secs,
          detect_secs=statistics.fmean(detects),
          repair_secs=_mean_pause(changes, "repair"),
          reconfigure_secs=_mean_pause(changes, "reconfigure"),
          restart_secs=max(0.0, run.start_secs - boot_secs),
          load_secs=0.0,
          save_secs=0.0,
          stall_secs=0.0,
          save_every_secs=0.0,  # The steps include their stalls.
      ),
      tuple(_mean_step(usual or first, *size) for size, (usual, first) in by_size.items()),
  )


def _mean_pause(events: Sequence[run_times.OwnerChange], rung: str) -> float:
  """Returns the mean pause of events of a rung; of all if there are none."""
  found = [e for e in events if e.rung == rung] or events
  known = [e.pause_secs for e in found if e.pause_secs is not None]
  return max(0.0, statistics.fmean(known))


def _mean_step(
    steps: Sequence[ledger_lib.Totals], num_nodes: int, num_pipelines: int
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


def _totals(outcome: loop.Outcome) -> ledger_lib.Totals:
  a = outcome.account
  parts = a.node_time.parts
  return ledger_lib.Totals(a.secs, a.node_secs, parts, a.num_samples)


def _account(
    totals: ledger_lib.Totals, price: prices_lib.Price, market: str
) -> account_lib.Account:
  start = dataclasses.replace(totals, node_secs=math.fsum(totals.parts))
  return ledger_lib.Ledger(price, market=market, start=start).account()


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


def report(
    workdir: pathlib.Path,
    run: run_times.RunTimes,
    replay: replay_lib.Replay,
    make_policy: Callable[[times_lib.MeasuredTimes], loop.Policy],
    *,
    measured: times_lib.MeasuredTimes,
    price: prices_lib.Price,
    formats: Sequence[str] = ("png",),
) -> str:
  """Predicts a run in `workdir/run`, writes tables and page; returns text.

  It is also predicted from its own times, to separate noise in `measured` from
  effects that the simulator lacks.
  """
  policy, own = make_policy(measured), measure(run)
  market = policy.market
  real = of_run(run, price, market=market)
  secs = real.account.secs
  predicted, outcome = predict(replay, policy, price, secs=secs)
  again, _ = predict(replay, make_policy(own), price, secs=secs)
  rows = compare(predicted, real)
  before = {(s.num_nodes, s.num_pipelines): s.cost.secs for s in measured.steps}
  for step in own.steps:
    what = f"step of {step.num_nodes} nodes x {step.num_pipelines}, ms"
    found = before.get((step.num_nodes, step.num_pipelines))
    rows.append(_row(what, found and 1e3 * found, 1e3 * step.cost.secs))
  output.write_summary(workdir, rows)
  comparison = contents.compare(
      "Predicted and measured",
      [
          (
              row["what"],
              row["measured"],
              (row["predicted"],),
              {"no": "not the same"}.get(row["same"], ""),
          )
          for row in rows
      ],
      columns=["predicted"],
      source="the run",
      label="measured",
  )
  ours, theirs = contents.simulated("predicted", outcome), contents.read_run(workdir / "run", {})
  theirs["head"]["run"] = "measured"
  for value, side in ((ours, predicted), (theirs, real)):
    value["figures"] |= facts.figures_of(side.account)
  found = contents.make(
      f"Prediction and outcome of {workdir.name}", [ours, theirs], tables={"validation": comparison}
  )
  contents.write(workdir, found, formats)
  own_times = f"from its own times: {summarize(again, real)}"
  last = summarize(predicted, real)
  return f"{output.render_rows(rows)}\n{own_times}\n{last}"
