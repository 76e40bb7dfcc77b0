"""Views: numbered sets of the nodes that train together.

There is one counter. Every change of the set makes a new view with the next
number, and messages of an older one are dropped. All functions are pure; of two
views with one number the first that was recorded counts, see `judge`.
"""

from collections.abc import Collection, Iterable, Mapping
import dataclasses
import functools
import types
from typing import Any

from bamboo_jax import base


@dataclasses.dataclass(frozen=True, order=True)
class Member:
  """A node of a view, and the address of its agent.

  Attributes:
    number: Never reused in a run.
    incarnation: Unique; tells apart successive agents with one name.
  """

  number: base.NodeId
  name: str
  zone: str
  incarnation: str
  host: str
  port: int


@dataclasses.dataclass(frozen=True)
class View:
  """The nodes that train together, by number.

  Attributes:
    number: Grows by one with every change.
    reason: What changed since the previous view, for people.
    leaving: Numbers of members whose preemption has been announced.
    epoch: The view without members from which this life of the run began.
    run: The view without members from which the run itself began; 0 in a new
      folder.
    repeats: Number of the view of which this is a copy, 0 if it is none. A copy
      carries a message through the log of views and interrupts no worker.
    is_ask: Whether the message asks if any member is alive.
    words: The message of a copy.
    asked: Numbers of the members that are to answer a question; all if empty.
    stops: Whether the members save the step that they are in, and end.
    silence_secs: Seconds from the last message of a removed node until its proposer made the
      view, the longest of several; None if not known. For reports only.
  """

  number: base.ViewId
  members: tuple[Member, ...]
  reason: str
  leaving: tuple[base.NodeId, ...] = ()
  epoch: base.ViewId = base.ViewId(0)
  run: base.ViewId = base.ViewId(0)
  repeats: base.ViewId = base.ViewId(0)
  is_ask: bool = False
  words: str = ""
  asked: tuple[base.NodeId, ...] = ()
  stops: bool = False
  silence_secs: float | None = dataclasses.field(default=None, compare=False)

  def __post_init__(self) -> None:
    numbers = [m.number for m in self.members]
    if numbers != sorted(set(numbers)):
      raise ValueError(f"Members must be sorted by number, got {numbers}.")
    if not set(self.leaving) <= set(numbers):
      raise ValueError(f"leaving={self.leaving} must be members of {numbers}.")

  @functools.cached_property
  def numbers(self) -> frozenset[base.NodeId]:
    return frozenset(m.number for m in self.members)

  @property
  def next_number(self) -> base.ViewId:
    return base.ViewId(self.number + 1)

  @property
  def text(self) -> str:
    """Message or reason, for people."""
    return self.words or self.reason

  @functools.cached_property
  def _by_incarnation(self) -> dict[str, Member]:
    return {m.incarnation: m for m in self.members}

  def find(self, incarnation: str) -> Member | None:
    return self._by_incarnation.get(incarnation)


def find_successor(adopted: View, later: Iterable[View]) -> View | None:
  """Returns the view to adopt next; None while no member of `adopted` is lost.

  It is the first of `later`, in order, whose members are all in the newest. So
  all workers choose the same view, even if some receive yet another one before
  they have left `adopted`.
  """
  later = list(later)
  if not later or adopted.numbers <= later[-1].numbers:
    return None
  return next(v for v in later if v.numbers <= later[-1].numbers)


def part_that_stays(view: View, successor: View) -> float:
  """Returns the part of the members of `view` that are in `successor`.

  Unless it is most of them, the node that proposed `successor` may itself be
  the one cut off. It is 1 for a view without members.
  """
  if not view.members:
    return 1.0
  return len(view.numbers & successor.numbers) / len(view.members)


def repeat(
    view: View, words: str, *, is_ask: bool = False, asked: tuple[base.NodeId, ...] = ()
) -> View:
  """Returns the next view, a copy of this one with a message."""
  return dataclasses.replace(
      view,
      number=view.next_number,
      repeats=view.repeats or view.number,
      is_ask=is_ask,
      words=words,
      asked=asked,
  )


def original(view: View) -> View:
  """Returns the view that `view` is a copy of, or `view` itself."""
  if not view.repeats:
    return view
  return dataclasses.replace(
      view, number=view.repeats, repeats=EMPTY.repeats, is_ask=False, words="", asked=()
  )


def ask(view: View, name: str, whom: Iterable[Member] = ()) -> View:
  """Returns the view in which a node asks whether any member is alive.

  Members that the node still reaches do not answer if it names `whom`.
  """
  number = view.repeats or view.number
  whom = sorted(whom)
  names = ", ".join(m.name for m in whom) or "any member"
  words = f"{name} asks whether {names} of view {number} is alive"
  asked = tuple(m.number for m in whom)
  return repeat(view, words, is_ask=True, asked=asked)


def answer(view: View, name: str) -> View:
  """Returns the view in which a member says that it is alive."""
  return repeat(view, f"{name} is alive")


def stop(view: View, name: str) -> View:
  """Returns the view in which members are told to save and end."""
  reason = f"{name} asks to save and end"
  return dataclasses.replace(original(view), number=view.next_number, reason=reason, stops=True)


def over(view: View) -> View:
  """Returns the view after `view` that ends this life of the run."""
  reason = f"no member of view {view.number} is left"
  return View(view.next_number, (), reason, run=view.run)


def begin_run(view: View, reason: str, members: tuple[Member, ...] = ()) -> View:
  """Returns the view after `view` from which another run begins in the folder."""
  number = view.next_number
  return View(number, members, reason, epoch=number if members else EMPTY.epoch, run=number)


EMPTY = View(base.ViewId(0), (), "no node has joined yet")
_NOBODY: Mapping[str, Any] = types.MappingProxyType({})


def next_view(
    view: View,
    *,
    lost: Mapping[str, str],
    candidates: Collection[Member],
    noticed: Mapping[str, str] = _NOBODY,
) -> View:
  """Returns the view that should follow; `view` itself if nothing changes.

  Args:
    lost: Reasons to remove a node, by incarnation.
    candidates: Nodes that are ready to join; members, lost nodes and nodes with
      a notice are ignored, and all if the run ends.
    noticed: Texts of preemption notices, by incarnation.
  """
  if not (lost or candidates or noticed):  # Most of the time.
    return view
  stay = [m for m in view.members if m.incarnation not in lost]
  known = {m.incarnation for m in view.members} | set(lost) | set(noticed)
  numbers = {m.number for m in stay}
  come = []
  for c in sorted(c for c in candidates if c.incarnation not in known):
    if c.number not in numbers and not view.stops:
      numbers.add(c.number)
      come.append(c)
  leaving = [m for m in stay if m.incarnation in noticed or m.number in view.leaving]
  reasons = [
      *(f"{m.name} left: {lost[m.incarnation]}" for m in view.members if m.incarnation in lost),
      *(
          f"{m.name} will be preempted ({noticed[m.incarnation]})"
          for m in leaving
          if m.number not in view.leaving
      ),
      *(f"{m.name} joined" for m in come),
  ]
  if not reasons:
    return view
  return View(
      view.next_number,
      tuple(sorted([*stay, *come])),
      "; ".join(reasons),
      leaving=tuple(m.number for m in leaving),
      epoch=view.epoch if view.members else view.number,
      run=view.run,
      stops=view.stops,
  )
