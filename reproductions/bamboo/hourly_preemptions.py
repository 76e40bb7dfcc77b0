"""Draws preemptions hour by hour, as Bamboo's artifact does."""

from collections.abc import Iterator
import heapq
import itertools
import random

from bamboo_jax.reproductions.bamboo import loop as artifact_loop


def draw_hours(
    rng: random.Random, *, capacity: int, preemption_probability: float
) -> Iterator[list[artifact_loop.Row]]:
  """Yields the events of the nodes in each hour, endlessly.

  A node present at a full hour is lost with the given probability, at a
  uniformly random second of that hour. For each slot that is free or becomes
  free, a candidate arrives with the probability of that hour of the day; it is
  rejected if all slots are taken by then, and may be lost in the same hour.
  """
  random_bits, draw_chance = rng.getrandbits, rng.random

  def draw_ms() -> int:
    second = random_bits(12)
    while second >= 3600:  # `rng.randrange(3600)`, but faster.
      second = random_bits(12)
    return start_ms + 1000 * second

  probabilities = [draw_chance() for _ in range(24)]
  names = map(str, itertools.count())
  live: dict[str, None] = {}  # In order of addition.
  for _ in range(capacity):
    if draw_chance() < probabilities[0]:
      live[next(names)] = None
  rows = [(0, True, name) for name in live]
  for hour in itertools.count():
    start_ms = hour * artifact_loop.HOUR_MS
    losses = [(draw_ms(), name) for name in live if draw_chance() < preemption_probability]
    heapq.heapify(losses)
    candidates = range(capacity - len(live) + len(losses))
    probability = probabilities[hour % 24]
    times = [draw_ms() for _ in candidates if draw_chance() < probability]
    times.sort(reverse=True)
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
        lost_ms = draw_ms()
        if lost_ms >= time_ms:
          heapq.heappush(losses, (lost_ms, name))
    yield rows
    rows = []
