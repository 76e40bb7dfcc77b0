"""Decides which pass a stage runs in which tick; see `ticks`."""

from collections.abc import Sequence
import enum

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op


class Code(enum.IntEnum):
  """What a stage itself runs in a tick."""

  IDLE = 0
  FORWARD = 1
  BACKWARD = 2


# For each tick and stage what it runs for itself, and the microbatch of that.
Passes = list[list[tuple[Code, int]]]

_NOTHING = (Code.IDLE, -1)
_OPS = {Op.FORWARD: Code.FORWARD, Op.BACKWARD: Code.BACKWARD}
_ROUNDING = 1e-9  # By how much sums of times may be wrong, as a fraction.


def align(
    schedule: instruction_lib.Schedule, *, owners: Sequence[int]
) -> Passes:
  """Returns the passes of all rows, each as early as its inputs are there.

  `schedule` runs every microbatch on every stage; its redundant forward passes
  are ignored. Raises `ValueError` if a node owns several stages, or rows wait
  for each other.
  """
  if len(set(owners)) != len(owners):
    raise ValueError(
        f"Each node must own one stage of a program, got owners {list(owners)}."
    )
  last = len(owners) - 1
  done: set[tuple[Code, int, int]] = set()
  todo = [_own_passes(schedule.rows[node])[::-1] for node in owners]
  passes = []
  while any(todo):
    tick = []
    for s, row in enumerate(todo):
      code, m = row[-1] if row else _NOTHING
      before = s - 1 if code is Code.FORWARD else s + 1
      waits = 0 <= before <= last and (code, before, m) not in done
      tick.append(_NOTHING if waits else (code, m))
    for s, (code, m) in enumerate(tick):
      if code is not Code.IDLE:
        done.add((code, s, m))
        todo[s].pop()
    if all(code is Code.IDLE for code, _ in tick):
      raise ValueError("The rows wait for each other.")
    passes.append(tick)
  return passes


def _own_passes(row: instruction_lib.Row) -> list[tuple[Code, int]]:
  """Returns forward and backward passes, microbatches counted from 0."""
  own = [i for i in row if i.op in _OPS]
  position = {m: j for j, m in enumerate(sorted({i.microbatch for i in own}))}
  return [(_OPS[i.op], position[i.microbatch]) for i in own]


def pass_ms(code: Code, stage: int, costs: costs_lib.StageCosts) -> float:
  """Returns the time of what a stage runs for itself."""
  times = {Code.FORWARD: costs.forward_ms, Code.BACKWARD: costs.backward_ms}
  return times[code][stage] if code in times else 0.0


def place_redundant(
    passes: Passes, *, costs: costs_lib.StageCosts, budget: float
) -> tuple[Passes, dict[tuple[int, int], int]]:
  """Returns ticks, and the microbatch of redundant passes by (tick, stage).

  In the order of microbatches each goes where it lengthens the step least, and
  there as early as it can; ticks are added at the end if that is best. `passes`
  have at least two stages; the step may grow by the fraction `budget`.
  """
  ticks = _Ticks(passes, costs)
  left_ms = budget * sum(ticks.lasts_ms) if budget else 0.0
  for m in range(1 + max(m for tick in passes for _, m in tick)):
    for s in range(len(passes[0])):
      longer_ms, t = ticks.find_best(s, m)
      if longer_ms <= left_ms:
        ticks.place(t, s, m, longer_ms)
        left_ms -= longer_ms
  return ticks.passes, ticks.redundant


class _Ticks:

  def __init__(self, passes: Passes, costs: costs_lib.StageCosts) -> None:
    self.passes = list(passes)
    self.lasts_ms = [
        max(pass_ms(code, s, costs) for s, (code, _) in enumerate(tick))
        for tick in passes
    ]
    self.redundant: dict[tuple[int, int], int] = {}
    self._costs = costs
    self._slack_ms = _ROUNDING * sum(self.lasts_ms)
    self._made = {
        (s, m): t
        for t, tick in enumerate(passes)
        for s, (code, m) in enumerate(tick)
        if code is Code.FORWARD
    }

  def find_best(self, stage: int, microbatch: int) -> tuple[float, int]:
    """Returns the least time that a pass adds, and the first such tick."""
    successor = (stage + 1) % len(self.passes[0])
    took_ms = self._costs.redundant_ms[successor]
    # The last stage has its input from the start: it is that of the first.
    first = self._made[stage, microbatch] + 1 if successor else 0
    best = (took_ms, len(self.passes))
    for t in range(first, len(self.passes)):
      if (t, stage) in self.redundant:
        continue
      own_ms = pass_ms(self.passes[t][stage][0], stage, self._costs)
      longer_ms = own_ms + took_ms - self.lasts_ms[t]
      if longer_ms <= self._slack_ms:
        return 0.0, t
      best = min(best, (longer_ms, t))
    return best

  def place(
      self, tick: int, stage: int, microbatch: int, longer_ms: float
  ) -> None:
    if tick == len(self.passes):
      self.passes.append([_NOTHING] * len(self.passes[0]))
      self.lasts_ms.append(0.0)
    self.redundant[tick, stage] = microbatch
    self.lasts_ms[tick] += longer_ms
