"""What it took one node, and then all of them, to go on after a death."""

from collections.abc import Iterable, Sequence
import dataclasses
from typing import Any

from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op


@dataclasses.dataclass
class Recovery:
  """One change of the view in which somebody was lost.

  Times are on `time.perf_counter`, which all processes of a machine share.

  Attributes:
    step: Index of the step that was going on, or was next.
    view: Number of the new view.
    nodes: Numbers of the lost nodes that had a role.
    victims: Their places as `pipeline/stage`.
    rung: Rung of the recovery ladder.
    reason: Why it was this one, in words.
    view_at_secs: When the new view came here.
    agreed_at_secs: When all had agreed on how to go on.
    ready_at_secs: When the rows of the rest of the step were there.
    step_end_at_secs: When the step was committed.
    first_owed_at_secs: When the first owed pass of a lost stage began,
      anywhere; None if none was owed.
    last_owed_at_secs: When the last one ended.
  """

  step: int
  view: int
  nodes: tuple[int, ...]
  victims: tuple[str, ...]
  rung: str
  reason: str
  view_at_secs: float
  agreed_at_secs: float = 0.0
  ready_at_secs: float = 0.0
  step_end_at_secs: float = 0.0
  first_owed_at_secs: float | None = None
  last_owed_at_secs: float | None = None

  def find_owed(
      self, measured: Iterable[recorder_lib.Measured]
  ) -> tuple[float, float] | None:
    """Returns when owed passes began and ended on this node.

    Those are passes of lost stages. If new pipelines were made that is any.
    """
    stages = {int(v.split("/")[1]) for v in self.victims}
    owed = [
        m
        for m in measured
        if m.instruction.op in (Op.FORWARD, Op.BACKWARD)
        and (m.instruction.stage in stages or self.rung != "shadow")
        and m.start_secs > self.view_at_secs
    ]
    if not owed:
      return None
    return min(m.start_secs for m in owed), max(m.end_secs for m in owed)

  def merge_owed(self, found: Iterable[Sequence[float] | None]) -> None:
    """Fills in the times of owed passes from those of all nodes."""
    found = [f for f in found if f is not None]
    if found:
      self.first_owed_at_secs = min(first for first, _ in found)
      self.last_owed_at_secs = max(last for _, last in found)

  def as_dict(self) -> dict[str, Any]:
    """Returns plain values."""
    return dataclasses.asdict(self)
