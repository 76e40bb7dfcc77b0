"""Types that several packages share, and numbers that must not be mixed up.

At run time these are plain integers. Arithmetic gives an `int`, which is wrapped
if it is such a number again; so are numbers that a user or a file gives.

  StepId   a step: the number of steps before it
  ViewId   a view
  NodeId   a node; never reused in a run
  StageId  a stage of a pipeline, or a segment: see `recovery.layout`
  ShareId  a share of the batch
"""

from collections.abc import Iterable, Iterator, Sequence
import os
from typing import Any, cast, NamedTuple, NewType, TypeVar

_T = TypeVar("_T")
StepId = NewType("StepId", int)
ViewId = NewType("ViewId", int)
NodeId = NewType("NodeId", int)
StageId = NewType("StageId", int)
ShareId = NewType("ShareId", int)
PyTree = Any  # Nested containers of arrays, as JAX takes them.
StrPath = str | os.PathLike[str]

# Limit on the nodes of a run, the dead included.
MAX_NODES = 8191


class Place(NamedTuple):
  """A stage of a pipeline, written `pipeline/stage`."""

  pipeline: int
  stage: StageId

  def __str__(self) -> str:
    return f"{self.pipeline}/{self.stage}"

  @classmethod
  def parse(cls, text: str) -> "Place":
    """Parses "pipeline/stage"; raises `ValueError` for any other text."""
    pipeline, slash, stage = text.partition("/")
    if not (slash and pipeline.isdecimal() and stage.isdecimal()):
      raise ValueError(f"A place is written pipeline/stage, such as 0/2, got {text!r}.")
    return cls(int(pipeline), StageId(int(stage)))


def nodes(*bounds: int) -> Sequence[NodeId]:
  """Returns `range(*bounds)`."""
  return cast(Sequence[NodeId], range(*bounds))


def stages(*bounds: int) -> Sequence[StageId]:
  """Returns `range(*bounds)`."""
  return cast(Sequence[StageId], range(*bounds))


def by_node(values: Iterable[_T]) -> Iterator[tuple[NodeId, _T]]:
  """Returns `enumerate(values)`, for values with one entry per node."""
  return cast(Iterator[tuple[NodeId, _T]], enumerate(values))


def by_stage(values: Iterable[_T]) -> Iterator[tuple[StageId, _T]]:
  """Returns `enumerate(values)`, for values with one entry per stage."""
  return cast(Iterator[tuple[StageId, _T]], enumerate(values))
