"""Events and steps of a cluster under a trace, from its logs.

Times count from the first step, when the replay of a trace begins; earlier
steps, which compile, are ignored.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import json
import math
import pathlib
import statistics
from typing import Any

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.metrics import jsonl

Owners = tuple[tuple[str, ...], ...]

_NUM_NEAR = 20  # Steps nearby that estimate the normal time of a step.
# What `nodes.jsonl` records, as events of a trace.
_KINDS = {"start": "add", "remove": "remove", "notice": "notice"}
_IDLE = account_lib.KINDS.index("idle")


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


@dataclasses.dataclass(frozen=True)
class TimedStep:
  """A step: its wall time to the next, and the size of the cluster."""

  secs: float
  num_nodes: int
  num_pipelines: int
  is_plain: bool
  totals: account_lib.Totals


@dataclasses.dataclass(frozen=True)
class RunTimes:
  """A run.

  Attributes:
    start_secs: From the start of its nodes to the first step.
    nodes: When a node was added or removed, seconds after the first step, and its name in
      the trace.
    removed: Names in the run of the nodes that the launcher removed.
  """

  start_secs: float
  steps: tuple[TimedStep, ...]
  events: tuple[OwnerChange, ...]
  boot_secs: tuple[float, ...]
  totals: account_lib.Totals
  nodes: tuple[tuple[float, str, str], ...] = ()
  removed: tuple[str, ...] = ()


def read(workdir: pathlib.Path) -> RunTimes:
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
    return make(lines, nodes)
  except (ValueError, KeyError) as error:
    what = "is not the log of a run of `bamboo cluster`"
    raise ValueError(f"{log} {what}: {error!s:.200}") from error


def make(lines: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]) -> RunTimes:
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
            secs=entry.totals.secs - before.totals.secs,
            num_nodes=len({n for row in owners for n in row}),
            num_pipelines=len(owners),
            is_plain=not is_changed and entry.step not in recoveries,
            totals=subtract(entry.totals, before.totals),
        )
    )
  kills = {n["name"]: n["at_secs"] for n in nodes if n["event"] == "remove"}
  totals = subtract(entries[-1].totals, first.totals)
  begin_secs = layouts[first.step]["at_secs"]
  paid_secs = _lifetimes(nodes, begin_secs, begin_secs + totals.secs)
  unseen_secs = max(0.0, paid_secs - totals.node_secs)
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
      nodes=tuple(
          (n["at_secs"] - begin_secs, kind, n["node"] or n["name"])
          for n in nodes
          if (kind := _KINDS.get(n["event"]))
      ),
      removed=tuple(kills),
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
  plain = [s.secs for s in near if s.is_plain][:_NUM_NEAR]
  pause_secs = steps[index].secs - statistics.fmean(plain) if plain else None
  return OwnerChange(
      secs=math.fsum(s.secs for s in steps[:index]),
      rung=change["rung"],
      owners=tuple(tuple(map(str, row)) for row in change["owners"]),
      pause_secs=pause_secs,
      is_loss=is_loss,
      detect_secs=detect_secs,
  )


def _lifetimes(nodes: Sequence[Mapping[str, Any]], begin_secs: float, end_secs: float) -> float:
  """Returns the summed lifetimes of nodes within a span of time."""
  gone = {n["name"]: n["at_secs"] for n in nodes if n["event"] == "remove"}
  lives: list[tuple[float, float]] = [
      (max(n["at_secs"], begin_secs), gone.get(n["name"], end_secs))
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
