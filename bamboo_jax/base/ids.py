"""Numbers that must not be mixed up, each as a type of its own.

At run time all are plain integers. Arithmetic gives an `int`, which is wrapped
if it is such a number again; so are numbers that a user or a file gives.

  StepId   a step: the number of steps before it
  ViewId   a view
  NodeId   a node; never reused in a run
  StageId  a stage of a pipeline, or a segment: see `recovery.layout`
  ShareId  a share of the batch
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast, NewType, TypeVar

StepId = NewType("StepId", int)
ViewId = NewType("ViewId", int)
NodeId = NewType("NodeId", int)
StageId = NewType("StageId", int)
ShareId = NewType("ShareId", int)
_T = TypeVar("_T")


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
