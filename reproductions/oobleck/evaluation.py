"""Oobleck's evaluation, by the rules of its artifact and in our simulator."""

from collections.abc import Sequence
import dataclasses
import functools
import math
import pathlib
import statistics
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.experiments import output, sweep
from bamboo_jax.report import contents
from bamboo_jax.reproductions import publish as publish_lib
from bamboo_jax.reproductions.oobleck import artifact, inputs, ours
from bamboo_jax.traces import trace as trace_lib

_SHARES = (
    *("effective", "redundant", "checkpoint", "rebalance", "restart"),
    *("fallback", "idle_gpu"),
)
_OOM = "OOM"
_SCAN_ORDER = "hangs on the scan order of a heap"
_COLUMNS = ("artifact's rules", "our simulator")
_REMARK = (
    "A note marks what would be another figure by the artifact's rules, by more than 1 %, if "
    "checkpoints failed in the order of time. Our simulator: sound rules throughout, from the same "
    "throughput table."
)


@dataclasses.dataclass(frozen=True)
class Case:
  """One system, model and trace, with its results.

  Attributes:
    outcome: By the artifact's rules; None if the system cannot run the model.
    throughputs: Samples per second, one for each of `_COLUMNS`; None as above.
    note: A caveat of the case.
    published: Published samples per second; None if unknown.
    losses_per_hour: Of the trace; None if nodes are added to it later.
  """

  trace: str
  model: str
  system: str
  outcome: artifact.Outcome | None
  throughputs: tuple[float | None, ...]
  note: str
  published: float | None
  losses_per_hour: float | None


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
  models = inputs.read_models(publish_lib.PUBLISHED)
  if model is not None and model not in models:
    raise ValueError(base.suggest(model, models, what="model"))
  traces = inputs.read_traces(publish_lib.PUBLISHED)
  published = {
      (row["trace"], row["model"], row["system"]): row["avg_samples_per_s"]
      for row in inputs.read_published(publish_lib.PUBLISHED)
  }
  plays = [
      Play(models[one], system, name, found, published.get((name, one, system), _OOM))
      for name, found in traces.items()
      for one in ([model] if model else models)
      for system in reversed(inputs.SYSTEMS)
  ]
  cases = [*sweep.run(play_case, plays, where)]
  table = _compare(cases)
  report = contents.make(
      table["title"], remarks=[_REMARK], series=_series(cases), tables={"evaluation": table}
  )
  rows = [_row(case) for case in cases]
  publish_lib.publish(workdir, rows, report, formats=formats)


class Play(NamedTuple):
  """One case to simulate, with its published figure."""

  model: inputs.Model
  system: str
  name: str
  trace: trace_lib.Trace
  figure: str


def play_case(job: Play) -> Case:
  """Returns the results of a case."""
  model, system, name, trace, figure = job
  # No synthetic trace adds nodes after its start.
  grows = any(e.kind == "add" and e.time_ms > 0 for e in trace.events)
  # On a recorded trace, of Varuna the artifact rolls back no work of the smaller models.
  skips_rollback = grows and model.name in artifact.NO_ROLLBACK
  what = (model, system, trace)
  play = functools.partial(artifact.simulate, *what, has_rollback=not skips_rollback)
  outcome, in_order = play(), play(scans_heap=False)
  note = _OOM
  if outcome:
    rates = outcome.throughput, in_order.throughput
    note = "" if math.isclose(*rates, rel_tol=0.01) else _SCAN_ORDER
  num_losses = sum(event.kind == "remove" for event in trace.events)
  return Case(
      trace=name,
      model=model.name,
      system=system,
      outcome=outcome,
      throughputs=(outcome and outcome.throughput, ours.simulate(*what)),
      note=note,
      published=None if figure == _OOM else float(figure),
      losses_per_hour=(None if grows else num_losses / (trace.duration_ms / 3.6e6)),
  )


def _row(case: Case) -> output.Row:
  outcome, throughputs = case.outcome, case.throughputs
  shares = outcome.shares if outcome else {}
  return {
      "policy": case.system,
      "model": case.model,
      "trace": case.trace,
      "throughput_samples_per_sec": throughputs[0],
      "sound_throughput_samples_per_sec": throughputs[1],
      "published_throughput_samples_per_sec": case.published,
      "steps": outcome and outcome.num_steps,
      "preemptions": outcome and outcome.preemptions,
      "average_nodes": outcome and outcome.average_nodes,
      **{f"share_{name}": shares.get(name) for name in _SHARES},
      "note": case.note,
  }


def _series(cases: Sequence[Case]) -> dict[str, contents.Value]:
  """Returns the share of the best throughput of a model, with models' range."""
  whole: dict[tuple, float] = {}
  shares: dict[str, dict[float, list[float]]] = {}
  for case in sorted(cases, key=lambda c: c.losses_per_hour or 0.0):
    if not case.losses_per_hour or case.published is None:
      continue
    ours_rate = case.throughputs[-1]
    for kind, rate in (("published", case.published), ("ours", ours_rate)):
      name = f"{case.system}, {kind}"
      best = whole.setdefault((name, case.model), rate)  # Rarest losses.
      by_loss = shares.setdefault(name, {})
      by_loss.setdefault(case.losses_per_hour, []).append(rate / best)
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


def _compare(cases: Sequence[Case]) -> contents.Value:
  return contents.compare(
      "Samples per second in Oobleck's evaluation",
      [(f"{c.trace}, {c.model}, {c.system}", c.published, c.throughputs, c.note) for c in cases],
      columns=_COLUMNS,
      source="SOSP'23 artifact, executed",
  )
