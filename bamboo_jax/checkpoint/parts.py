"""Who writes which part of a checkpoint, and when all parts are there. Pure.

Each stage is written by one of its owners; pipelines take turns. So every node
with a stage has about as much to write, and nobody waits for another.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any

from bamboo_jax.checkpoint import manifest as manifest_lib


@dataclasses.dataclass(frozen=True)
class Save:
  """A checkpoint that many nodes write.

  Attributes:
    step: Number of steps that the state has seen.
    view: Number of the view in which it was begun.
    writer: Node that writes the manifest.
    stages: The stages that each node writes.
  """

  step: int
  view: int
  writer: int
  stages: Mapping[int, tuple[int, ...]]

  @property
  def attempt(self) -> str:
    """Tells it apart from other saves of this step."""
    return f"v{self.view}"


@dataclasses.dataclass(frozen=True)
class Report:
  """What a node says of its part.

  Attributes:
    step: Of the save.
    view: Of the save.
    part: What it has written; None if that went wrong.
    error: What went wrong.
  """

  step: int
  view: int
  part: manifest_lib.Part | None
  error: str = ""

  def to_json(self) -> dict[str, Any]:
    """Returns plain JSON values."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> "Report":
    """Returns what `to_json` was called on."""
    part = content["part"]
    part = part and manifest_lib.Part.from_json(part)
    return cls(content["step"], content["view"], part, content["error"])

  def is_of(self, save: Save) -> bool:
    """Returns whether it is about a part of `save`."""
    return (self.step, self.view) == (save.step, save.view)


def find_writer(owners: Sequence[Sequence[int]]) -> int:
  """Returns the node that writes for all.

  Args:
    owners: For each pipeline, the node of each stage.
  """
  return min(node for row in owners for node in row)


def plan_save(step: int, view: int, owners: Sequence[Sequence[int]]) -> Save:
  """Returns who writes what.

  Args:
    step: Number of steps that the state has seen.
    view: Number of the view.
    owners: For each pipeline, the node of each stage.
  """
  stages: dict[int, tuple[int, ...]] = {}
  for stage in range(len(owners[0])):
    node = owners[stage % len(owners)][stage]
    stages[node] = (*stages.get(node, ()), stage)
  return Save(step, view, find_writer(owners), stages)


def is_complete(save: Save, parts: Iterable[int]) -> bool:
  """Returns whether the parts of these nodes are all that there are."""
  return save.stages.keys() <= set(parts)


def join_parts(
    parts: Iterable[manifest_lib.Part], order: Sequence[str]
) -> manifest_lib.Part:
  """Returns all parts as one.

  Args:
    parts: Of all nodes.
    order: The layers in model order.
  """
  layers, files = {}, {}
  for part in parts:
    layers |= part.layers
    files |= part.files
  return manifest_lib.Part({name: layers[name] for name in order}, files)
