"""Oobleck's evaluation, by the rules of its artifact and in our simulator."""

from collections.abc import Mapping, Sequence
import functools
import math
import pathlib
import statistics
from typing import NamedTuple

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.experiments import output, sweep
from bamboo_jax.recovery import policies
from bamboo_jax.report import contents
from bamboo_jax.reproductions import publish
from bamboo_jax.reproductions.bamboo import loop as artifact_loop
from bamboo_jax.reproductions.oobleck import artifact
from bamboo_jax.sim import build, loop, speed as speed_lib
from bamboo_jax.traces import trace as trace_lib

_SHARES = (
    *("effective", "redundant", "checkpoint", "rebalance", "restart"),
    *("fallback", "idle_gpu"),
)
_OOM = "OOM"
_SCAN_ORDER = "hangs on the scan order of a heap"
_COLUMNS = ("artifact's rules", "our simulator")
# Their columns in `summary.csv`.
_RATES = ("throughput_samples_per_sec", "sound_throughput_samples_per_sec")
_PUBLISHED = "published_throughput_samples_per_sec"
_REMARK = (
    "A note marks what would be another figure by the artifact's rules, by more than 1 %, if "
    "checkpoints failed in the order of time. Our simulator: sound rules throughout, from the same "
    "throughput table."
)
# Oobleck needs two pipelines for every layer to have a second copy, so its
# pipelines may be half as long as the smallest measured number of nodes.
_LEAST_STAGES = {"oobleck": 7, "varuna": 12, "bamboo": 12}
_CHECKPOINT_EVERY = 10  # Steps of all nodes.
# Placeholder: costs are not used.
_PRICE = prices_lib.Price(
    instance="none", on_demand_usd_per_hour=1.0, spot_usd_per_hour=1.0, source="none", date="2023"
)


def run(
    model: str | None = None,
    *,
    workdir: pathlib.Path,
    formats: Sequence[str] = ("png",),
    where: sweep.Where = sweep.HERE,
) -> None:
  """Writes `summary.csv` and `report.html`; prints the published figures.

  Of all models, or of one, on the published traces.
  """
  models = artifact.read_models()
  if model is not None and model not in models:
    raise ValueError(base.suggest(model, models, what="model"))
  traces = artifact.read_traces()
  published = {
      (row["trace"], row["model"], row["system"]): row["avg_samples_per_s"]
      for row in artifact.read_published()
  }
  plays = [
      Play(models[one], system, name, found, published.get((name, one, system), _OOM))
      for name, found in traces.items()
      for one in ([model] if model else models)
      for system in reversed(artifact.SYSTEMS)
  ]
  rows = [*sweep.run(play_case, plays, where)]
  table = contents.compare(
      "Samples per second in Oobleck's evaluation",
      [
          (
              f"{row['trace']}, {row['model']}, {row['policy']}",
              row[_PUBLISHED],
              [row[name] for name in _RATES],
              row["note"],
          )
          for row in rows
      ],
      columns=_COLUMNS,
      source="SOSP'23 artifact, executed",
  )
  series = _series(rows, {name: _losses_per_hour(found) for name, found in traces.items()})
  report = contents.make(
      table["title"], remarks=[_REMARK], series=series, tables={"evaluation": table}
  )
  publish.publish(workdir, rows, report, formats=formats)


class Play(NamedTuple):
  """One case to simulate, with its published figure."""

  model: artifact.Model
  system: str
  name: str
  trace: trace_lib.Trace
  figure: str


def play_case(job: Play) -> output.Row:
  """Returns the line of a case in `summary.csv`."""
  model, system, name, trace, figure = job
  # On a recorded trace, of Varuna the artifact rolls back no work of the smaller models.
  skips_rollback = _grows(trace) and model.name in artifact.NO_ROLLBACK
  what = (model, system, trace)
  play = functools.partial(artifact.simulate, *what, has_rollback=not skips_rollback)
  outcome, in_order = play(), play(scans_heap=False)
  note = _OOM
  if outcome:
    rates = outcome.throughput, in_order.throughput
    note = "" if math.isclose(*rates, rel_tol=0.01) else _SCAN_ORDER
  shares = outcome.shares if outcome else {}
  rates = outcome and outcome.throughput, simulate(*what)
  return {
      "policy": system,
      "model": model.name,
      "trace": name,
      **dict(zip(_RATES, rates, strict=True)),
      _PUBLISHED: None if figure == _OOM else float(figure),
      "steps": outcome and outcome.num_steps,
      "preemptions": outcome and outcome.preemptions,
      "average_nodes": outcome and outcome.average_nodes,
      **{f"share_{name}": shares.get(name) for name in _SHARES},
      "note": note,
  }


def _grows(trace: trace_lib.Trace) -> bool:
  """Returns whether nodes are added after the start, as in no synthetic trace."""
  return any(e.kind == "add" and e.time_ms > 0 for e in trace.events)


def _losses_per_hour(trace: trace_lib.Trace) -> float | None:
  """Returns the rate of losses; None if nodes are added later."""
  num_losses = sum(event.kind == "remove" for event in trace.events)
  return None if _grows(trace) else num_losses / (trace.duration_ms / 3.6e6)


def _series(
    rows: Sequence[output.Row], losses_per_hour: Mapping[str, float | None]
) -> dict[str, contents.Value]:
  """Returns the share of the best throughput of a model, with models' range."""
  whole: dict[tuple, float] = {}
  shares: dict[str, dict[float, list[float]]] = {}
  for row in sorted(rows, key=lambda row: losses_per_hour[row["trace"]] or 0.0):
    losses = losses_per_hour[row["trace"]]
    if not losses or row[_PUBLISHED] is None:
      continue
    for kind, rate in (("published", row[_PUBLISHED]), ("ours", row[_RATES[-1]])):
      name = f"{row['policy']}, {kind}"
      best = whole.setdefault((name, row["model"]), rate)  # Rarest losses.
      shares.setdefault(name, {}).setdefault(losses, []).append(rate / best)
  if not shares:
    return {}
  lines = {
      name: [_point(rate, by_model) for rate, by_model in by_loss.items()]
      for name, by_loss in shares.items()
  }
  counts = [len(by_model) for by_loss in shares.values() for by_model in by_loss.values()]
  note = output.explain_bars(counts, "ranges over models")
  y = "share of the throughput where losses are rarest"
  return {"share": contents.series("losses per hour", lines, y=y, note=note)}


def _point(rate: float, shares: Sequence[float]) -> Sequence[float | None]:
  ends = (min(shares), max(shares)) if len(shares) > 1 else (None, None)
  return [rate, statistics.fmean(shares), *ends]


def simulate(model: artifact.Model, system: str, trace: trace_lib.Trace) -> float | None:
  """Returns samples per second in our simulator, from the start of training to the trace's end.

  None if the system cannot run the model, 0 if it never trains. Only throughput by number
  of nodes and the times of changes are as published. So effects that the artifact omits cost
  time: training stops while nodes are reassigned, no stale timer remains, added nodes are
  used as soon as that pays, and the downtime at the end counts.
  """
  if system not in model.throughput:
    return None
  config = config_lib.Config().changed(
      {"pipeline.num_stages": _LEAST_STAGES[system], "study.durations": _durations(model, system)}
  )
  config = policies.apply(config, policies.find(f"{system}+grid"))
  table = _table(model, system, trace.num_nodes)
  (policy,) = build.make_choices(system, config.changed({"study.reroute": "shares"}), table)
  outcome = loop.simulate(trace, policy, _PRICE, keep_moments=True)
  starts = [m.secs for m in outcome.moments if m.samples_per_sec]
  if not starts:
    return 0.0
  return outcome.account.num_samples / (trace.duration_ms / 1e3 - starts[0])


def _table(model: artifact.Model, system: str, most: int) -> speed_lib.Table:
  """Returns the throughput for up to `most` nodes.

  Beyond the largest measured number of nodes it is constant.
  """
  rates = {
      nodes: 1e3 * model.samples_per_step / model.step_ms(system, nodes)
      for nodes in range(1, most + 1)
  }
  name = f"{system}, {model.name}"
  return speed_lib.Table(name, model.samples_per_step, rates)


def _durations(model: artifact.Model, system: str) -> config_lib.DurationsSection:
  """Returns the published times.

  The artifact has no checkpoints of Oobleck and Bamboo; here they have the
  interval and duration of Varuna's, but do not stop training.
  """
  reconfigure_ms, restart_ms = {
      "oobleck": (model.reconfigure_ms, model.reconfigure_ms),
      "varuna": (0, model.restart_ms),  # Never reconfigures.
      "bamboo": (model.local_ms, artifact_loop.GLOBAL_MS),
  }[system]
  checkpoint_secs = model.checkpoint_ms / 1e3
  step_secs = model.step_ms("varuna", artifact.MAX_NODES) / 1e3
  return config_lib.DurationsSection(
      boot_secs=artifact_loop.CREATION_MS / 1e3,
      detect_secs=0.0,
      repair_secs=reconfigure_ms / 1e3,
      reconfigure_secs=reconfigure_ms / 1e3,
      restart_secs=restart_ms / 1e3,
      load_secs=0.0,
      save_secs=checkpoint_secs,
      stall_secs=checkpoint_secs if system == "varuna" else 0.0,
      save_every_secs=_CHECKPOINT_EVERY * step_secs + checkpoint_secs,
  )
