"""Draws preemptions hour by hour, as Bamboo's artifact does."""

from collections.abc import Iterator
import heapq
import itertools
import random

from bamboo_jax.published.bamboo import loop as artifact_loop

_HOUR_MS = 3_600_000


def draw_hours(
    rng: random.Random, *, capacity: int, preemption_probability: float
) -> Iterator[list[artifact_loop.Row]]:
  """Yields what happens to the nodes in each hour, without end.

  A node present at a full hour is lost with the given probability, at a second
  drawn evenly from that hour. For each slot that is free, or gets free, a
  candidate comes with the probability of that hour of the day; it is turned
  away if all slots are taken by then, and may be lost in the same hour.
  """
  probabilities = [rng.random() for _ in range(24)]
  names = map(str, itertools.count())
  live: dict[str, None] = {}  # In order of addition.
  for _ in range(capacity):
    if rng.random() < probabilities[0]:
      live[next(names)] = None
  rows = [(0, True, name) for name in live]
  for hour in itertools.count():
    rows += _draw_hour(
        rng,
        live,
        names,
        start_ms=hour * _HOUR_MS,
        capacity=capacity,
        addition_probability=probabilities[hour % 24],
        preemption_probability=preemption_probability,
    )
    yield rows
    rows = []


def _draw_hour(
    rng: random.Random,
    live: dict[str, None],
    names: Iterator[str],
    *,
    start_ms: int,
    capacity: int,
    addition_probability: float,
    preemption_probability: float,
) -> list[artifact_loop.Row]:
  """Returns the rows of an hour, and brings `live` to its end."""
  random_bits, draw_chance = rng.getrandbits, rng.random

  def draw() -> int:
    second = random_bits(12)
    while second >= 3600:  # As `rng.randrange(3600)`, in a third of its time.
      second = random_bits(12)
    return start_ms + 1000 * second

  losses = [
      (draw(), name) for name in live if draw_chance() < preemption_probability
  ]
  heapq.heapify(losses)
  candidates = range(capacity - len(live) + len(losses))
  times = [draw() for _ in candidates if draw_chance() < addition_probability]
  times.sort(reverse=True)
  rows = []
  while losses or times:
    if losses and not (times and times[-1] <= losses[0][0]):
      time_ms, name = heapq.heappop(losses)
      del live[name]
      rows.append((time_ms, False, name))
      continue
    time_ms = times.pop()
    if len(live) == capacity:
      continue
    name = next(names)
    live[name] = None
    rows.append((time_ms, True, name))
    if draw_chance() < preemption_probability:
      lost_ms = draw()
      if lost_ms >= time_ms:
        heapq.heappush(losses, (lost_ms, name))
  return rows
