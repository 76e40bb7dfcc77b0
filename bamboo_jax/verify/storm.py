"""Storms: nodes die and come at random, over and over, as a run goes on."""

from collections.abc import Iterator, Sequence
import random

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import moves
from bamboo_jax.runtime.executables import program_store
from bamboo_jax.training import worker as worker_lib
from bamboo_jax.verify import cases

_LAST_POINT = 12  # Instructions before which nodes die; some rows are shorter.
_AT_A_POINT = ("kill", "node")
_MISSING = 4  # If so many nodes are missing, as many come as die.


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
    self._asked = cases.FIRST_STEP - 1
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
    layout, left = state.layout, state.layout.nodes | state.spares
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
