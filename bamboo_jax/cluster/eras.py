"""Eras: one coordination service of JAX after the other, each with its slots.

A service has a fixed number of slots, and a slot is used once. When a node
comes for whom the newest service has none, or the service has died, another one
is started, and all nodes move there. Slots follow from the numbers of nodes, so
nobody has to hand them out. Pure.
"""

from collections.abc import Collection
import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Era:
  """A coordination service and its slots; `number` grows by one with each.

  Attributes:
    num_slots: Number of slots; slot 0 is for nobody.
    first: Numbers of the nodes that there were when it began, in order.
    base: Lowest number of a node that comes after that.
  """

  number: int
  address: str
  num_slots: int
  first: tuple[int, ...] = ()
  base: int = 0

  def __post_init__(self) -> None:
    if list(self.first) != sorted(set(self.first)):
      raise ValueError(f"first must be in order, got {self.first}.")
    if self.first and self.base <= self.first[-1]:
      raise ValueError(f"base={self.base} must be above all of {self.first}.")
    if self.num_slots < len(self.first) + 2:
      raise ValueError(
          f"num_slots={self.num_slots} must be at least "
          f"{len(self.first) + 2}, for {len(self.first)} nodes and another one."
      )

  @property
  def numbers(self) -> tuple[int, ...]:
    """Numbers of the nodes that have a slot: of slot 1, slot 2 and so on."""
    num_later = self.num_slots - 1 - len(self.first)
    return (*self.first, *range(self.base, self.base + num_later))


def slot_of(era: Era, number: int) -> int | None:
  """Returns the slot of a node, None if it has none."""
  if number in era.first:
    return era.first.index(number) + 1
  slot = len(era.first) + 1 + number - era.base
  return slot if number >= era.base and slot < era.num_slots else None


def is_late(era: Era, number: int) -> bool:
  """Whether the era, and any later one, can have no slot for a node."""
  return number < era.base and number not in era.first


def begin_era(
    number: int, address: str, *, num_slots: int, nodes: Collection[int]
) -> Era:
  """Returns an era of some nodes; more slots if nobody could come otherwise."""
  return Era(
      number,
      address,
      num_slots=max(num_slots, len(nodes) + 2),
      first=tuple(sorted(nodes)),
      base=max(nodes, default=-1) + 1,
  )


def find_nodes(
    *,
    members: Collection[int] | None,
    registered: Collection[int],
    tickets: Collection[int],
    num_slots: int,
) -> set[int]:
  """Returns the nodes for whom a new era has slots.

  A node takes a ticket, its number, before it registers, so who has come after
  the newest member may be on its way.

  Before the first view nobody is named as long as all numbers have a slot.

  Args:
    members: Numbers of the members of the view, None before the first.
    num_slots: Of the service.
  """
  if members is None and max(tickets, default=0) < num_slots - 1:
    return set()
  newest = -1 if members is None else max(members, default=math.inf)
  return {*(members or ()), *registered, *(t for t in tickets if t > newest)}


def find_unused(running: Collection[int], used: Collection[int]) -> set[int]:
  """Returns the eras that no worker uses any more; the newest stays."""
  if not used or not running:
    return set()  # Nobody has said so yet.
  oldest = min(min(used), max(running))
  return {e for e in running if e < oldest}
