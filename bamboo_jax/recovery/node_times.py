"""The times of nodes in a step, by which slow nodes are found."""

import collections
from collections.abc import Iterable, Mapping
import dataclasses
import re
from typing import Protocol

from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op


@dataclasses.dataclass(frozen=True)
class NodeStep:
  """Times of a node in a step.

  Attributes:
    work: The number of its forward and backward passes, `1B*4 1F*4`.
    busy_secs: Time spent in these passes.
    waited_secs: Time spent waiting for values of other nodes; None if unknown.
    starved_secs: Time in which it was ready to run, but the processors of its
      machine ran other programs; part of `busy_secs` or `waited_secs`.
    suspended_secs: Time in which its process could not run at all; part of
      `busy_secs` or `waited_secs`, and not of `starved_secs`.
    pass_secs: Time of its passes by kind, such as `1F`. Without it, only equal
      work is compared.
    waited_for: Time in receives, by the node that was waited for.
  """

  work: str
  busy_secs: float
  waited_secs: float | None = None
  starved_secs: float = 0.0
  suspended_secs: float = 0.0
  pass_secs: Mapping[str, float] = dataclasses.field(default_factory=dict)
  waited_for: Mapping[int, float] = dataclasses.field(default_factory=dict)

  @property
  def suspended_part(self) -> float:
    """The part of the step for which it was suspended, below 1."""
    secs = self.busy_secs + (self.waited_secs or 0.0)
    return min(0.99, self.suspended_secs / secs) if secs > 0 else 0.0

  @property
  def net_secs(self) -> float:
    """The busy time, less any time in which other programs may have run."""
    return self.busy_secs - self.starved_secs

  def with_work(self, work: str) -> "NodeStep | None":
    """Returns a step with other passes, as far as it has run such passes."""
    if work == self.work:
      return self
    now, then = count_passes(work), count_passes(self.work)
    if not self.pass_secs or not now.keys() <= self.pass_secs.keys():
      return None
    pass_secs = {k: n * self.pass_secs[k] / then[k] for k, n in now.items()}
    more_secs = sum(pass_secs.values()) - sum(self.pass_secs.values())
    busy_secs = self.busy_secs + more_secs
    return dataclasses.replace(
        self, work=work, busy_secs=busy_secs, pass_secs=pass_secs
    )


def count_passes(work: str) -> dict[str, int]:
  """Returns the numbers that `NodeStep.work` holds, by kind."""
  return {k: int(num) for k, num in re.findall(r"(\w+)\*(\d+)", work)}


Step = Mapping[int, NodeStep]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delays:
  """Delays of a process in a step; see `NodeStep`."""

  waited_secs: float = 0.0
  starved_secs: float = 0.0  # Of the thread that runs the rows.
  suspended_secs: float = 0.0
  waited_for: Mapping[int, float] = dataclasses.field(default_factory=dict)


class Measured(Protocol):
  """An instruction that has run; see `profile.recorder.MeasuredInstruction`."""

  @property
  def node(self) -> int:
    """The node that ran it."""

  @property
  def instruction(self) -> instruction_lib.Instruction:
    """What it ran."""

  @property
  def start_secs(self) -> float:
    """Its start, on `time.perf_counter`."""

  @property
  def end_secs(self) -> float:
    """Its end."""


def measure(
    measured: Iterable[Measured],
    *,
    secs: float,
    delays: Delays,
    is_alone: bool,
) -> Step:
  """Returns the times of local nodes in a step.

  Args:
    secs: The duration of the step, waiting included.
    is_alone: Whether the process hosts one node. Then its time outside of
      receives counts as busy, as when the process is suspended.
  """
  counts: dict[int, collections.Counter[str]] = {}
  passes: dict[int, dict[str, float]] = {}
  spare: dict[int, float] = {}  # Redundant passes fill waits, or do not run.
  for one in measured:
    node, instruction = one.node, one.instruction
    took_secs = one.end_secs - one.start_secs
    if instruction.op is Op.REDUNDANT_FORWARD:
      spare[node] = spare.get(node, 0.0) + took_secs
    elif instruction.op not in instruction_lib.TRANSFERS:
      kind = f"{instruction.stage}{instruction.op.value}"
      counts.setdefault(node, collections.Counter())[kind] += 1
      pass_secs = passes.setdefault(node, {})
      pass_secs[kind] = pass_secs.get(kind, 0.0) + took_secs
  found = {}
  for node, pass_secs in passes.items():
    work = " ".join(f"{k}*{num}" for k, num in sorted(counts[node].items()))
    busy_secs = sum(pass_secs.values())
    found[node] = NodeStep(work, busy_secs, pass_secs=pass_secs)
    if is_alone:
      free_secs = delays.waited_secs + spare.get(node, 0.0)
      busy_secs = max(busy_secs, secs - free_secs)
      found[node] = dataclasses.replace(
          found[node],
          busy_secs=busy_secs,
          waited_secs=max(0.0, secs - busy_secs),
          starved_secs=delays.starved_secs,
          suspended_secs=delays.suspended_secs,
          waited_for=delays.waited_for,
      )
  return found
