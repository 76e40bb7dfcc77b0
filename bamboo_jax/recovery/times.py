"""Times of recoveries, and how a summary reports them.

Workers know when they heard of a death; when it happened, only its cause does.
"""

from collections.abc import Iterable, Mapping
import dataclasses
from typing import Any

from bamboo_jax.base import types
from bamboo_jax.schedule.ticks import redone as redone_lib


@dataclasses.dataclass
class RecoveryTimes:
  """One change of the view in which nodes with a role were lost.

  Times are on `time.perf_counter`, which all processes of a machine share.

  Attributes:
    step: Index of the step that was going on, or was next.
    nodes: Numbers of the lost nodes that had a role.
    victims: Their places as `pipeline/stage`.
    view_at_secs: When the new view came to the member that wrote this.
    agreed_at_secs: When all had agreed on how to go on.
    ready_at_secs: When the rows of the rest of the step were there.
    step_end_at_secs: When the step was committed.
    first_owed_at_secs: When the first owed pass of a lost stage began,
      anywhere; None if none was owed.
    last_owed_at_secs: When the last one ended.
    redone: What programs have done again; None of rows.
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
  redone: redone_lib.Redone | None = None

  @property
  def places(self) -> tuple[types.Place, ...]:
    """The places that the lost nodes owned."""
    return tuple(map(types.Place.parse, self.victims))

  @property
  def pause_secs(self) -> float:
    """From the new view until the rest of the step was planned."""
    return max(0.0, self.ready_at_secs - self.view_at_secs)

  def merge_owed(self, found: Iterable[tuple[float, float]]) -> None:
    """Fills in the times of owed passes from those of several members."""
    spans = list(found)
    if spans:
      self.first_owed_at_secs = min(first for first, _ in spans)
      self.last_owed_at_secs = max(last for _, last in spans)

  def merge_redone(
      self, found: Iterable[Mapping[int, redone_lib.Redone]]
  ) -> None:
    """Fills in what several members have done again, by share."""
    by_share = {s: r for redone in found for s, r in redone.items()}
    if by_share:
      self.redone = redone_lib.add_up(by_share.values())


def report(
    recoveries: Iterable[Mapping[str, Any]], kills: Mapping[int, float]
) -> list[dict[str, Any]]:
  """Returns recoveries as `summary.json` reports them: durations, not times.

  Args:
    recoveries: Each `RecoveryTimes` as a dict.
    kills: When each killed node died, by number, on the same clock; others
      count as dead when the view without them came.
  """
  reported = []
  for r in recoveries:
    times = [kills[n] for n in r["nodes"] if n in kills]
    killed = min(times, default=r["view_at_secs"])
    first, last = r["first_owed_at_secs"], r["last_owed_at_secs"]
    reported.append(
        {
            "step": r["step"],
            "victims": r["victims"],
            "rung": r["rung"],
            "view": r["view"],
            "detect_secs": r["view_at_secs"] - killed,
            "consensus_secs": r["agreed_at_secs"] - r["view_at_secs"],
            "rebuild_secs": r["ready_at_secs"] - r["agreed_at_secs"],
            "redo_secs": last - first if first is not None else 0.0,
            "kill_to_first_instruction_secs": (
                first - killed if first is not None else None
            ),
            "kill_to_step_end_secs": r["step_end_at_secs"] - killed,
            **({"redone": r["redone"]} if r.get("redone") else {}),
            "reason": r["reason"],
        }
    )
  return reported
