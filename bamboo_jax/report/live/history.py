"""The course of a run, in as many points as a page can draw."""

from collections.abc import Iterable, Mapping
import types
from typing import Any

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.recovery import durations, slowness

_MOST = 1000  # Points; with more, every second one is dropped.
_MOST_EVENTS = 200  # The last ones.
_ROUTINE = ("evaluating", "saving")  # Pauses that are no events.
EMPTY: Mapping[base.NodeId, float] = types.MappingProxyType({})


def find_recovery(line: Mapping[str, Any], kills: Mapping[base.NodeId, float]) -> dict[str, Any]:
  """Returns durations and a sentence of a `durations.RecoveryTimes`.

  `kills` is as in `durations.report`.
  """
  (found,) = durations.report([line], kills)
  text = durations.describe(found).partition(": ")[2]  # The step is said beside it.
  return found | {"view_at_secs": line["view_at_secs"], "text": text}


class History:
  """Adds up the lines of a log.

  Args:
    kills: Time of death of nodes that this process has killed, by number.

  Attributes:
    points: Step, seconds of training, loss, tokens (or samples) per second,
      live nodes, seconds of all nodes so far, samples so far.
    evaluations: Step and loss.
    events: Step, kind such as "join", and a sentence.
    recoveries: By view, as `find_recovery` returns them.
    last: The last line of a step; empty before.
    totals: Totals of the account at the last step.
    num_tokens: Trained on and kept.
    owners: Number of the owner of each stage, by pipeline, at the end.
    names: Of the nodes, by number, at the end.
    places: The last places of each node that ever had some, by number.
    pause: Why training pauses since the last step; "" if it does not.
  """

  def __init__(self, kills: Mapping[base.NodeId, float] = EMPTY) -> None:
    self._kills = kills
    self._boot_secs = 0.0  # Of nodes that are charged with the next step.
    self.points: list[tuple[Any, ...]] = []
    self.evaluations: list[list[Any]] = []
    self.events: list[dict[str, Any]] = []
    self.recoveries: dict[int, dict[str, Any]] = {}
    self.last: Mapping[str, Any] = {}
    self.totals = account_lib.Totals()
    self.num_tokens = 0.0
    self.owners: list[list[base.NodeId]] = []
    self.names: Mapping[str, str] = {}
    self.places: dict[base.NodeId, list[str]] = {}
    self.pause = ""
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
    for entry in account_lib.entries([line]):
      self.totals = entry.totals
    secs = self.totals.secs - before.secs
    node_secs = self.totals.node_secs - before.node_secs - self._boot_secs
    self._boot_secs = 0.0
    self.last, self.pause = line, ""
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
              round(node_secs / secs) if secs > 0 else None,
              round(self.totals.node_secs, 3),
              self.totals.num_samples,
          )
      )
    if len(self.points) > _MOST:
      self._stride *= 2
      self.points = [p for p in self.points if p[0] % self._stride == 0]

  def _add_event(self, line: jsonl.Line) -> None:
    match line["event"]:
      case "recovery":
        found = find_recovery(line, self._kills) | {"train_secs": self.totals.secs}
        self.recoveries[line["view"]] = found
      case "layout":
        self._add_layout(line["owners"])
        self.names = line.get("names", {})
      case "join":
        self._boot_secs += sum(line["boot_secs"].values())
        names = line.get("names") or [f"node {n}" for n in line["boot_secs"]]
        self._note(line, f"{', '.join(names)} joined")
      case "pause":
        self.pause = line["reason"]
        if not self.pause.startswith(_ROUTINE):
          self._note(line, self.pause)
      case "eval":
        self.pause = ""
        self.evaluations.append([line["step"], line.get("loss")])
      case "warning" | "changed":
        self._note(line, line["text"])
      case "slow":
        self._note(line, slowness.describe(line))
      case "skipped" | "saving" | "save_failed":
        self._note(line, f"{line['event']}: {line['reason']}")

  def _add_layout(self, owners: list[list[base.NodeId]]) -> None:
    self.owners, found = owners, dict[base.NodeId, list[str]]()
    for pipeline, row in enumerate(owners):
      for stage, node in enumerate(row):
        found.setdefault(node, []).append(f"{pipeline}/{stage}")
    self.places |= found

  def _note(self, line: jsonl.Line, text: str) -> None:
    if self.events and (self.events[-1]["step"], self.events[-1]["text"]) == (line["step"], text):
      return  # A pause has the same words.
    self.events.append({"step": line["step"], "kind": line["event"], "text": text})
    del self.events[:-_MOST_EVENTS]
