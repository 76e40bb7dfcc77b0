"""Who dies when: every single death, samples of several together, and storms.

All nodes are alive, and have their replicas, when the step `FIRST_STEP` begins.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import random

from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import moves
from bamboo_jax.runtime import program_store
from bamboo_jax.training import worker as worker_lib

FIRST_STEP = 1
# What several deaths may have to do with each other: two in a step, whose nodes hold no replica
# of each other, or do; another one soon after, while the rest of the step runs; or in the next
# step that of the node that runs the lost stage.
KINDS = ("pair", "neighbours", "second", "two_stages")

# After how many more of its instructions, at most, another node dies during a recovery.
_SOON = 12
_LAST_POINT = 12  # Instructions before which nodes die in a storm; some rows are shorter.
_AT_A_POINT = ("kill", "node")
_MISSING = 4  # If so many nodes are missing, as many come as die.

Place = types.Place


@dataclasses.dataclass(frozen=True)
class Case:
  """Deaths, in the steps from `FIRST_STEP` on, of which there are `least` at least."""

  faults: tuple[faults_lib.Fault, ...]
  least: int = 0

  @property
  def num_steps(self) -> int:
    """Number of steps to run; the last, without a death, shows the damage."""
    last = max((f.step for f in self.faults), default=FIRST_STEP)
    return max(last - FIRST_STEP + 2, self.least)

  def __iter__(self) -> Iterator[faults_lib.Fault]:
    return iter(self.faults)

  def __str__(self) -> str:
    return " ".join(map(str, self.faults))


@dataclasses.dataclass(frozen=True)
class Steps:
  """A step in which nobody dies.

  Attributes:
    order: Whose turn it is, as places.
    depths: Stages of each pipeline.
  """

  order: tuple[Place, ...]
  depths: tuple[int, ...]

  @property
  def places(self) -> tuple[Place, ...]:
    return tuple(Place(p, s) for p, n in enumerate(self.depths) for s in base.stages(n))

  def points(self, place: Place) -> tuple[int | str, ...]:
    """Returns the points of the step where the node at `place` can die."""
    return (*range(self.order.count(place)), *faults_lib.PHASES)

  def is_apart(self, first: Place, second: Place) -> bool:
    """Whether neither node can hold the replica of the other's stage."""
    num_stages = self.depths[first[0]]
    distance = (first[1] - second[1]) % num_stages
    return first[0] != second[0] or distance not in (0, 1, num_stages - 1)


def single_deaths(steps: Steps, *, every: int) -> tuple[Case, ...]:
  """Returns the deaths of one node, before one of `every` instructions."""
  return tuple(
      Case((_fault(place, at),))
      for place in steps.places
      for at in steps.points(place)
      if isinstance(at, str) or at % every == 0
  )


def draw_deaths(kind: str, steps: Steps, *, num_cases: int, seed: int) -> tuple[Case, ...]:
  """Returns random cases of a kind in `KINDS`; none for too small a step."""
  rng = random.Random(f"{kind} {seed}")
  if kind == "two_stages":
    groups: Sequence[tuple[Place, ...]] = [(p,) for p in steps.places] * (min(steps.depths) > 1)
  else:
    pairs = itertools.combinations(steps.places, 2)
    groups = [pair for pair in pairs if steps.is_apart(*pair) == (kind != "neighbours")]
  return tuple(_draw(kind, steps, rng.choice(groups), rng) for _ in range(num_cases * bool(groups)))


def _draw(kind: str, steps: Steps, places: Sequence[Place], rng: random.Random) -> Case:
  if kind == "second":
    first, second = rng.sample(places, 2)
    at = rng.randrange(steps.order.count(first))
    turns = [k for k, place in enumerate(steps.order) if place == first]
    soon = steps.order[: turns[at]].count(second) + rng.randint(1, _SOON)
    return Case((_fault(first, at), _fault(second, soon)))
  faults = [_fault(place, rng.choice(steps.points(place))) for place in places]
  if kind == "two_stages":
    points = steps.points(places[0])  # Its row is twice as long in the next step.
    faults.append(_fault(places[0], rng.choice((*points, *range(2 * len(points)))), 1))
  return Case(tuple(faults))


def _fault(place: Place, at: int | str, steps_later: int = 0) -> faults_lib.Fault:
  return faults_lib.Fault(FIRST_STEP + steps_later, str(place), at)


class Storm:
  """A case that is drawn as it goes, from who owns what when a step begins.

  Up to `at_once` nodes die in a step. A copy of each layer is always left,
  unless a run `goes_back` to checkpoints, and enough nodes for a pipeline;
  there are never more nodes than at first. It begins once all has been compiled
  that is compiled beside training.

  Args:
    kinds: Of faults of a node; `all` needs a run that `goes_back`.

  Attributes:
    faults: Drawn so far; a fault file of these does the same.
    num_compiled: Number of programs that have been compiled since it began.
  """

  def __init__(
      self,
      *,
      num_events: int,
      at_once: int,
      seed: int,
      kinds: Sequence[str] = ("kill",),
      goes_back: bool = False,
  ) -> None:
    self.faults: list[faults_lib.Fault] = []
    self._num_events = num_events
    self._at_once = at_once
    self._kinds, self._goes_back = kinds, goes_back
    self._rng = random.Random(f"storm {seed}")
    self._struck: set[int] = set()
    self._asked = FIRST_STEP - 1
    self._least = self._most = self._num_before = self.num_compiled = 0

  @property
  def num_steps(self) -> int:
    """How many steps are enough for all events."""
    return self._num_events + 1

  def __str__(self) -> str:
    return " ".join(map(str, self.faults))

  def attach(self, worker: worker_lib.Worker) -> None:
    """Takes the worker that it strikes."""
    self._worker = worker

  def __iter__(self) -> Iterator[faults_lib.Fault]:
    step = self._worker.state.steps
    if step > self._asked:
      self._asked = step
      self._draw(step)
    self.num_compiled = program_store.use().num_compiled - self._num_before
    return iter(self.faults)

  def _draw(self, step: int) -> None:
    if not self.faults:
      self._worker._compiler.wait()
      self._num_before = program_store.use().num_compiled
      pipelines = self._worker.state.layout.pipelines
      self._least = min(p.partition.num_stages for p in pipelines)
    state, rng = self._worker.state, self._rng
    # Who died late in a step may not be missed yet.
    layout, left = state.layout, {*state.full_layout.live}
    left -= self._struck
    members = len(left)
    self._most = max(self._most, members)
    count = rng.randint(1, self._at_once)
    points = [*range(_LAST_POINT), *faults_lib.PHASES]
    for _ in range(min(count, self._num_events - len(self.faults))):
      victims = [
          n
          for n in sorted(left)
          if self._goes_back or not moves.lost_layers(layout.pipelines, left - {n})
      ]
      if not victims or members <= self._least:
        break
      victim = rng.choice(victims)
      left -= {victim}
      self._struck |= {victim}
      at = rng.choice(points)
      kind = rng.choice(self._kinds)
      places = layout.places_of([victim])  # None of a spare.
      whom = str(rng.choice(places)) if places else f"n{victim}"
      if kind not in _AT_A_POINT or not places:
        at = None
      self._add(step, "" if kind == "all" else whom, at, kind)
      if kind == "all":
        break  # Who has fallen before comes again, too.
      members -= 1
    for _ in range(self._at_once):
      if rng.random() < (self._most - members) / _MISSING:
        if len(self.faults) < self._num_events:
          self._add(step + 1, "", None, "join")
          members += 1

  def _add(self, step: int, node: str, at: int | str | None, kind: str) -> None:
    line = 2 + len(self.faults)
    self.faults.append(faults_lib.Fault(step, node, at, kind, line))
