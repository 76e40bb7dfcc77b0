"""Deaths on purpose, and what it took to recover from them."""

import collections
from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import time

from bamboo_jax.faults import fault_file
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op


class NodesLostError(Exception):
  """Nodes have died; the step goes on without them.

  Attributes:
    nodes: Which ones.
    at_secs: When, on `time.perf_counter`.
  """

  def __init__(self, nodes: Collection[int], at_secs: float) -> None:
    super().__init__(f"Lost nodes {sorted(nodes)}.")
    self.nodes = frozenset(nodes)
    self.at_secs = at_secs


class Injector:
  """Says when nodes die in one step, from the faults of that step.

  A node dies before the instruction with the index of its fault, counted over
  all rows that it gets in this step, or at the end of its row.
  """

  def __init__(
      self,
      faults: Iterable[fault_file.Fault],
      *,
      owners: Sequence[Sequence[int]],
  ) -> None:
    """Finds out whom the faults mean.

    Args:
      faults: Those of the step.
      owners: For each pipeline, the node of each stage as the step begins.
    """
    self._at = {owners[f.pipeline][f.stage]: f.at for f in faults}
    self._num_run = collections.Counter()

  def before_instruction(self, node: int) -> None:
    """Raises `NodesLostError` if `node` dies before its next instruction."""
    if self._at.get(node) == self._num_run[node]:
      self._die([node])
    self._num_run[node] += 1

  def before_phase(self, phase: str) -> None:
    """Raises `NodesLostError` for nodes that die before `phase`.

    Before the phase that follows the rows also those die whose fault lies
    beyond the end of their row.
    """
    ended = phase != fault_file.PHASES[0]
    self._die(
        [
            node
            for node, at in self._at.items()
            if at == phase or (ended and isinstance(at, int))
        ]
    )

  def _die(self, nodes: list[int]) -> None:
    for node in nodes:
      del self._at[node]
    if nodes:
      raise NodesLostError(nodes, time.perf_counter())


@dataclasses.dataclass
class Recovery:
  """One recovery, as `summary.json` reports it.

  Attributes:
    step: Index of the step.
    victims: Lost nodes as `pipeline/stage`, a node of several stages with each.
    rung: Rung of the recovery ladder, "shadow" or "checkpoint".
    detect_secs: From the death to the start of the recovery.
    plan_secs: Until the rows of the rest of the step were there.
    redo_secs: From the start of the first owed pass to the end of the last; 0
      if none was owed.
    kill_to_first_instruction_secs: From the death to the start of the first
      owed forward or backward pass of a lost stage; None if none was owed.
    kill_to_step_end_secs: From the death to the end of the step.
    redone: Instructions that were run again, by kind.
  """

  step: int
  victims: tuple[str, ...]
  rung: str
  detect_secs: float
  plan_secs: float = 0.0
  redo_secs: float = 0.0
  kill_to_first_instruction_secs: float | None = None
  kill_to_step_end_secs: float | None = None
  redone: Mapping[str, int] = dataclasses.field(default_factory=dict)
  killed_at_secs: float = 0.0
  stages: frozenset[int] = frozenset()

  def as_dict(self) -> dict[str, object]:
    """Returns what `summary.json` holds."""
    entries = dataclasses.asdict(self)
    del entries["killed_at_secs"], entries["stages"]
    return entries

  def add_lost_program(self, secs: float, *, passes: Mapping[str, int]) -> None:
    """Adds what came before: the step was a program, which the death ended.

    Args:
      secs: From the death to the start of the step by rows.
      passes: Passes of a whole step by kind, all run again.
    """
    self.detect_secs += secs
    self.redone = passes
    if self.kill_to_first_instruction_secs is not None:
      self.kill_to_first_instruction_secs += secs
    self.kill_to_step_end_secs += secs

  def measure(
      self, measured: Iterable[recorder_lib.Measured], *, end_secs: float
  ) -> None:
    """Fills in the times that are known when the step has ended."""
    owed = [
        m
        for m in measured
        if m.instruction.op in (Op.FORWARD, Op.BACKWARD)
        and m.instruction.stage in self.stages
        and m.end_secs > self.killed_at_secs
    ]
    self.kill_to_step_end_secs = end_secs - self.killed_at_secs
    if owed:
      first = min(m.start_secs for m in owed)
      self.redo_secs = max(m.end_secs for m in owed) - first
      self.kill_to_first_instruction_secs = first - self.killed_at_secs


def count_redone(
    done: Iterable[tuple[int, instruction_lib.Instruction]],
    rest: Iterable[tuple[int, instruction_lib.Instruction]],
) -> dict[str, int]:
  """Returns how many instructions of `rest` were in `done`, by kind.

  Who ran them does not matter, nor to whom something was sent.
  """
  key = lambda i: (i.op, i.stage, i.microbatch)
  before = {key(i) for _, i in done}
  return dict(
      collections.Counter(i.op.value for _, i in rest if key(i) in before)
  )
