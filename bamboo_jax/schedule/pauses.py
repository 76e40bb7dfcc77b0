"""Predicts how much longer a step takes if a node dies in it.

The rest of the step is planned as after a real failure, from what the others
have finished by then, and played. Detection, planning and draining come on top.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline as timeline_lib


@dataclasses.dataclass(frozen=True)
class Pause:
  """The price of a death at `died_ms`: the step ends `longer_ms` later.

  Passes that run at that time are run again.
  """

  victim: int
  died_ms: float
  longer_ms: float


def predict_pauses(
    timeline: timeline_lib.Timeline,
    *,
    roles: failover.Roles,
    microbatches: Sequence[int],
    costs: costs_lib.StageCosts,
    in_flight: Sequence[int] | None,
    num_times: int = 20,
    victims: Sequence[int] | None = None,
) -> tuple[Pause, ...]:
  """Returns the price of the death of each node, at evenly spread times.

  A victim dies in the middle of each of `num_times` equal parts of the step.
  Raises `base.UnrecoverableHereError` if one of its stages has no shadow.
  """
  common = dict(microbatches=microbatches, costs=costs)
  pauses = []
  for k in range(num_times):
    died_ms = timeline.span_ms * (k + 0.5) / num_times
    held = {
        node: holdings_lib.after(
            slot.instruction for slot in row if slot.end_ms <= died_ms
        )
        for node, row in timeline.rows.items()
    }
    for victim in roles.nodes if victims is None else victims:
      after, valid = failover.fail_over(roles, held, {victim})
      common |= dict(owners=after.owners, holdings=valid)
      rest = scheduler.plan_rows(in_flight=in_flight, **common)
      rest_ms = timeline_lib.span_ms(rest.rows, costs)
      pauses.append(
          Pause(victim, died_ms, died_ms + rest_ms - timeline.span_ms)
      )
  return tuple(pauses)
