"""The division of a checkpoint among members, and their reports. Pure.

Each stage is written by one of its owners; pipelines take turns. So members
with a stage write about the same amount, and none waits for another.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.checkpoint import manifest as manifest_lib

_MIB = 1 << 20
_PART_OF_NOTICE = 0.5  # That a save may take before others take over; they need the rest.


@dataclasses.dataclass(frozen=True)
class Save:
  """A checkpoint in the making.

  Attributes:
    name: Unique, even among saves of the same step.
    writer: Member that joins the parts: the host of the lowest-numbered owner.
    stages: The stages that each member writes, for members that write any.
    num_skipped: Skipped steps in a row up to `step`.
  """

  name: manifest_lib.CheckpointName
  writer: base.NodeId
  stages: Mapping[base.NodeId, tuple[base.StageId, ...]]
  num_skipped: int = 0

  @property
  def is_alone(self) -> bool:
    """Whether the writer needs no other member."""
    return self.stages.keys() == {self.writer}


@dataclasses.dataclass(frozen=True)
class PartsReport:
  """A member's report on checkpoints in its vote.

  Attributes:
    begins: The name of the save to start, without its step and view; "" for none. Only
      the writer's value counts.
    is_busy: Whether this member is still writing the previous save.
    save: Name of the save whose part is reported; None without a report.
    part: Manifest of the written part; None if the write failed.
    error: Why there is no part; without a report, why the last save failed.
    num_bytes: Size of the part; 0 if nothing was written.
    secs: Time that this took, with the copy to a bucket.
  """

  begins: str
  is_busy: bool
  save: str | None = None
  part: manifest_lib.Manifest | None = None
  error: str = ""
  num_bytes: int = 0
  secs: float = 0.0


def describe_uploads(step: base.StepId, uploads: Collection[tuple[int, float]]) -> dict[str, Any]:
  """Returns size and rate of an upload by several members at once, from bytes and time of each."""
  mib = sum(num_bytes for num_bytes, _ in uploads) / _MIB
  secs = max((secs for _, secs in uploads), default=0.0)
  return {"saved": step, "mib": mib, "secs": secs, "mib_per_sec": mib / secs} if secs else {}


def is_due(step: base.StepId, after: base.StepId, every_steps: int) -> bool:
  """Returns whether a save is due from the step after `after` up to `step`."""
  return every_steps > 0 and step // every_steps > after // every_steps


def plan_save(
    said: Mapping[base.NodeId, PartsReport],
    step: base.StepId,
    *,
    view: base.ViewId,
    owners: Sequence[Sequence[base.NodeId]],
    num_skipped: int = 0,
    leaving: Collection[base.NodeId] = (),
) -> Save | None:
  """Returns which stages each member writes; None if the writer begins no save.

  `owners` are the members that host each stage, by pipeline; see `deal` for `leaving`.
  """
  writer = min(member for row in owners for member in row)
  name = manifest_lib.CheckpointName.parse(f"{step}.v{view}.{said[writer].begins}")
  if name is None:
    return None
  return Save(name, writer, deal(owners, leaving), num_skipped)


def deal(
    owners: Sequence[Sequence[base.NodeId]], leaving: Collection[base.NodeId] = ()
) -> dict[base.NodeId, tuple[base.StageId, ...]]:
  """Returns the stages that each member writes.

  Members that are `leaving` write only what no other member owns.
  """
  stages: dict[base.NodeId, tuple[base.StageId, ...]] = {}
  for stage in base.stages(len(owners[0])):
    column = [row[stage] for row in owners]
    able = [member for member in column if member not in leaving] or column
    member = able[stage % len(able)]
    stages[member] = (*stages.get(member, ()), stage)
  return stages


@dataclasses.dataclass(frozen=True)
class Risk:
  """State that will be lost with nodes whose preemption was announced, as one member sees it.

  Attributes:
    view: Number of the newest view that the member has received.
    leaving: All nodes of that view that will be preempted.
    holders: Those of them that have the only copies of some state.
    num_bytes: Size of that state.
    part_bytes: Size of what this member would write in a save, and before.
    rate: Of its last part, in bytes per second; 0 before the first one.
    left_secs: Time until the first of `holders` may end.
    has_takers: Whether others can take over in time without a checkpoint.
  """

  view: base.ViewId
  leaving: tuple[base.NodeId, ...]
  holders: tuple[base.NodeId, ...]
  num_bytes: int
  part_bytes: int
  rate: float
  left_secs: float
  has_takers: bool = False

  @property
  def secs(self) -> float:
    """The time that this member's part takes; 0 if no rate is known."""
    return self.part_bytes / self.rate if self.rate else 0.0


@dataclasses.dataclass(frozen=True)
class Exit:
  """The decision of all members on a risk.

  Attributes:
    saves: Whether they save now, before all else. Otherwise others take over first.
    text: What is saved, and whether it will fit into the notice.
  """

  view: base.ViewId
  leaving: tuple[base.NodeId, ...]
  saves: bool
  text: str


def decide_exit(said: Collection[Risk]) -> Exit | None:
  """Returns whether members save now, or let others take over first; None without a risk.

  A node that ends before a save is complete ends it for all. So if the save takes long
  and others can take over, they do so first, from memory; if none can, it is tried
  even if the notice is too short.
  """
  view = max((risk.view for risk in said), default=base.ViewId(0))
  newest = [risk for risk in said if risk.view == view]
  if not newest:
    return None
  rate = min((risk.rate for risk in newest if risk.rate), default=0.0)
  # Who takes over the writing may not have written yet.
  known = [dataclasses.replace(risk, rate=risk.rate or rate) for risk in newest]
  slowest = max(known, key=lambda risk: risk.secs)
  left_secs = min(risk.left_secs for risk in newest)
  # Is there time for a save, and then for others to take over?
  saves = slowest.secs <= _PART_OF_NOTICE * left_secs
  saves |= not all(risk.has_takers for risk in newest)
  names = ", ".join(map(logs.name_of, slowest.holders))
  text = f"{slowest.num_bytes / _MIB:.1f} MiB of the state are only on {names}, to be preempted; "
  if not slowest.rate:
    text += "the rate of saves is not known yet"
  else:
    mib, rate = slowest.part_bytes / _MIB, slowest.rate / _MIB
    text += f"the largest part, {mib:.1f} MiB at {rate:.1f} MiB/s, takes {slowest.secs:.1f} s"
  text += f", and {left_secs:.0f} s are left"
  if not saves:
    text = f"not yet, but others take over first: {text}"
  elif slowest.secs > left_secs:
    text += ": it will not fit, unless they live longer; else an older checkpoint is used"
  return Exit(view, slowest.leaving, saves, text)
