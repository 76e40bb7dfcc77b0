"""The course of a run, in as many points as a page can draw."""

from collections.abc import Iterable, Mapping
from typing import Any

from bamboo_jax.accounting import ledger as ledger_lib
from bamboo_jax.accounting import runs
from bamboo_jax.metrics import jsonl
from bamboo_jax.recovery import durations
from bamboo_jax.recovery import slowness

_MOST = 1000  # Points; with more, every second one is dropped.
_MOST_EVENTS = 200  # The last ones.


def find_recovery(line: Mapping[str, Any]) -> dict[str, Any]:
  """Returns durations and a sentence of a `durations.RecoveryTimes`."""
  (found,) = durations.report([line], {})
  begin_secs, ready_secs = line["view_at_secs"], line.get("ready_at_secs")
  if ready_secs is None:  # The step ended without further passes.
    ready_secs = line.get("step_end_at_secs")
  return found | {
      "pause_secs": None if ready_secs is None else ready_secs - begin_secs,
      "view_at_secs": begin_secs,
      "text": durations.describe(found),
  }


class History:
  """Adds up the lines of a log.

  Attributes:
    points: Step, seconds of training, loss, tokens (or samples) per second,
      live nodes.
    events: Step, kind such as "join", and a sentence.
    recoveries: By view, as `find_recovery` returns them.
    last: The last line of a step; empty before.
    totals: Totals of the account at the last step.
    num_tokens: Trained on and kept.
    owners: Number of the owner of each stage, by pipeline, at the end.
  """

  def __init__(self) -> None:
    self.points: list[tuple[Any, ...]] = []
    self.events: list[dict[str, Any]] = []
    self.recoveries: dict[int, dict[str, Any]] = {}
    self.last: Mapping[str, Any] = {}
    self.totals = ledger_lib.Totals()
    self.num_tokens = 0.0
    self.owners: list[list[int]] = []
    self._stride = 1

  def add(self, lines: Iterable[jsonl.Line]) -> None:
    """Adds further lines; raises `ValueError` for a bad account."""
    for line in lines:
      if "event" in line:
        self._add_event(line)
      else:
        self._add_step(line)

  def _add_step(self, line: jsonl.Line) -> None:
    before = self.totals
    for entry in runs.entries([line]):
      self.totals = entry.totals
    secs = self.totals.secs - before.secs
    node_secs = self.totals.node_secs - before.node_secs
    self.last = line
    if rate := line.get("tokens_per_sec"):
      self.num_tokens += rate * line.get("step_ms", 0.0) / 1e3
    step = line["step"]
    if step % self._stride == 0 or len(self.points) < 2:
      self.points.append(
          (
              step,
              round(self.totals.secs, 3),
              line.get("loss"),  # None if it is not finite.
              line.get("tokens_per_sec", line.get("samples_per_sec")),
              round(node_secs / secs, 2) if secs > 0 else None,
          )
      )
    if len(self.points) > _MOST:
      self._stride *= 2
      self.points = [p for p in self.points if p[0] % self._stride == 0]

  def _add_event(self, line: jsonl.Line) -> None:
    match line["event"]:
      case "recovery":
        self.recoveries[line["view"]] = find_recovery(line)
      case "layout":
        self.owners = line["owners"]
        return
      case "join":
        nodes = ", ".join(line["boot_secs"])
        self._note(line, f"node {nodes} joined")
      case "pause":
        self._note(line, line["reason"])
      case "warning" | "changed":
        self._note(line, line["text"])
      case "slow":
        self._note(line, slowness.describe(line))
      case "slow_over":
        self._note(line, f"{line['node']} is as fast as it should be again")
      case "skipped" | "saving" | "save_failed":
        self._note(line, f"{line['event']}: {line['reason']}")

  def _note(self, line: jsonl.Line, text: str) -> None:
    self.events.append(
        {"step": line["step"], "kind": line["event"], "text": text}
    )
    del self.events[:-_MOST_EVENTS]
