"""Recoveries as `summary.json` reports them, with the times of deaths.

Workers know when they heard of a death. When it happened, only its cause knows.
"""

from collections.abc import Iterable, Mapping
from typing import Any


def with_kill_times(
    recoveries: Iterable[Mapping[str, Any]],
    kills: Mapping[int, float],
) -> list[dict[str, Any]]:
  """Returns recoveries as `summary.json` reports them.

  Args:
    recoveries: As workers have written them, see `train.worker_recovery`.
    kills: When each killed node died, by number, on the same clock.
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
            "reason": r["reason"],
        }
    )
  return reported
