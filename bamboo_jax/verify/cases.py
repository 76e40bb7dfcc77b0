"""Lists of deaths to try: every single one, and samples of several together.

All nodes are alive, and have their replicas, when the step `FIRST_STEP` begins.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import random

from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.faults import faults as faults_lib

FIRST_STEP = 1

# After how many more of its instructions, at most, somebody else dies during a
# recovery.
_SOON = 12

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
    """All places."""
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
  cases = []
  for place in steps.places:
    points = steps.points(place)
    skipped = lambda at: isinstance(at, int) and at % every
    cases += [Case((_fault(place, at),)) for at in points if not skipped(at)]
  return tuple(cases)


def draw_deaths(kind: str, steps: Steps, *, num_cases: int, seed: int) -> tuple[Case, ...]:
  """Returns random cases of a kind in `KINDS`; none for too small a step."""
  rng = random.Random(f"{kind} {seed}")
  drawn = KINDS[kind](steps, rng)
  return tuple(itertools.islice(drawn, num_cases))


def _draw_pairs(steps: Steps, rng: random.Random, *, is_apart: bool) -> Iterator[Case]:
  """Two nodes die in one step; if not apart, owner and shadow of a stage."""
  pairs = _pairs(steps, is_apart=is_apart)
  while pairs:
    pair = rng.choice(pairs)
    yield Case(tuple(_fault(p, rng.choice(steps.points(p))) for p in pair))


def _draw_second(steps: Steps, rng: random.Random) -> Iterator[Case]:
  """A node dies, and soon another one, while the rest of the step runs."""
  pairs = _pairs(steps, is_apart=True)
  while pairs:
    first, second = rng.sample(rng.choice(pairs), 2)
    at = rng.randrange(steps.order.count(first))
    turns = [k for k, place in enumerate(steps.order) if place == first]
    done = steps.order[: turns[at]].count(second)
    soon = done + rng.randint(1, _SOON)
    yield Case((_fault(first, at), _fault(second, soon)))


def _draw_two_stages(steps: Steps, rng: random.Random) -> Iterator[Case]:
  """A node dies, and in the next step the one that runs its stage too."""
  while min(steps.depths) > 1:
    place = rng.choice(steps.places)
    points = steps.points(place)
    yield Case(
        (
            _fault(place, rng.choice(points)),
            # Its row is twice as long then.
            _fault(place, rng.choice((*points, *range(2 * len(points)))), 1),
        )
    )


# What several deaths may have to do with each other.
KINDS: Mapping[str, Callable[[Steps, random.Random], Iterator[Case]]] = {
    "pair": functools.partial(_draw_pairs, is_apart=True),
    "neighbours": functools.partial(_draw_pairs, is_apart=False),
    "second": _draw_second,
    "two_stages": _draw_two_stages,
}


def _pairs(steps: Steps, *, is_apart: bool) -> Sequence[tuple[Place, Place]]:
  return [
      pair for pair in itertools.combinations(steps.places, 2) if steps.is_apart(*pair) == is_apart
  ]


def _fault(place: Place, at: int | str, steps_later: int = 0) -> faults_lib.Fault:
  return faults_lib.Fault(FIRST_STEP + steps_later, str(place), at)
