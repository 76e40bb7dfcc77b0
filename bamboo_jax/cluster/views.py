"""Views: numbered sets of the nodes that train together.

There is one counter. Every change of the set makes a new view with the next
number, and whatever belongs to an older one is dropped. All functions are pure;
the store decides which of two proposals for one number wins.
"""

from collections.abc import Collection, Iterable, Mapping
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, order=True)
class Member:
  """A node of a view.

  Attributes:
    number: Its number, never given out again; its slot in JAX is the next one.
    name: Name of the node.
    zone: Zone that it is in.
    incarnation: Differs between two agents that used one name in turn.
    host: Host of its agent.
    port: Port of its agent.
  """

  number: int
  name: str
  zone: str
  incarnation: str
  host: str
  port: int

  def to_json(self) -> dict[str, Any]:
    """Returns the member as plain values."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, content: Any) -> "Member":
    """Returns what `to_json` was called on; `ValueError` if it is not one."""
    try:
      member = cls(**content)
    except TypeError as error:
      raise ValueError(f"Not a member: {error}.") from error
    for field in dataclasses.fields(cls):
      value = getattr(member, field.name)
      if type(value) is not field.type:
        raise ValueError(f"Not a member: {field.name}={value!r}.")
    return member


@dataclasses.dataclass(frozen=True)
class View:
  """The nodes that train together.

  Attributes:
    number: Grows by one with every change.
    members: The nodes by number.
    reason: Why it follows the view before, in words.
  """

  number: int
  members: tuple[Member, ...]
  reason: str

  def __post_init__(self) -> None:
    numbers = [m.number for m in self.members]
    if numbers != sorted(set(numbers)):
      raise ValueError(f"Members must be sorted by number, got {numbers}.")

  @property
  def numbers(self) -> frozenset[int]:
    """Numbers of the members."""
    return frozenset(m.number for m in self.members)

  def find(self, incarnation: str) -> Member | None:
    """Returns the member of this incarnation, or None."""
    return next((m for m in self.members if m.incarnation == incarnation), None)

  def leader(self, suspected: Collection[str] = ()) -> Member | None:
    """Returns who makes the next view: the oldest member not `suspected`.

    Args:
      suspected: Incarnations that are believed to be dead.
    """
    return next(
        (m for m in self.members if m.incarnation not in suspected), None
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the view as plain values."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> "View":
    """Returns what `to_json` was called on; `ValueError` if it is not one."""
    try:
      members = tuple(map(Member.from_json, content["members"]))
      return cls(**{**content, "members": members})
    except (KeyError, TypeError) as error:
      raise ValueError(f"Not a view: {error}.") from error


EMPTY = View(0, (), "nobody has come yet")


def next_view(
    view: View,
    *,
    lost: Mapping[str, str],
    candidates: Iterable[Member],
    least: int = 1,
) -> View:
  """Returns the view that should follow; `view` itself if nothing changes.

  Args:
    view: The current one.
    lost: Why a node is to be left out, by incarnation.
    candidates: Who is ready to be a member; those who are already, or are lost,
      do not matter.
    least: A view without a member before it has no fewer.
  """
  stay = [m for m in view.members if m.incarnation not in lost]
  known = {m.incarnation for m in view.members} | set(lost)
  come = sorted(c for c in candidates if c.incarnation not in known)
  if not stay and len(come) < least:
    come = []
  reasons = [
      f"{m.name} left: {lost[m.incarnation]}"
      for m in view.members
      if m.incarnation in lost
  ] + [f"{m.name} joined" for m in come]
  if not reasons:
    return view
  return View(
      view.number + 1, tuple(sorted([*stay, *come])), "; ".join(reasons)
  )
