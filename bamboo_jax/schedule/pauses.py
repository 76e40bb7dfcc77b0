"""Predicts how much longer a step takes if a node dies in it.

The rest of the step is planned as after a real failure, from what the others
have finished by then, and played. Detection, planning and draining come on top.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import dealing
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import lines as lines_lib
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
    num_pipelines: int | None = None,
) -> tuple[Pause, ...]:
  """Returns the price of the death of each node, at evenly spread times.

  A victim dies in the middle of each of `num_times` equal parts of the step.
  What is owed is dealt over `num_pipelines`, all like this one, by microbatch;
  None: the shadow alone computes it. Raises
  `base.UnrecoverableHereError` if one of its stages has no shadow.
  """
  first = lines_lib.Line(roles.owners, microbatches, in_flight)
  pauses = []
  for k in range(num_times):
    died_ms = timeline.span_ms * (k + 0.5) / num_times
    for victim in roles.nodes if victims is None else victims:
      lines, held, copies = _die(
          *(timeline, first, roles, num_pipelines or 1),
          died_ms=died_ms,
          victim=victim,
      )
      if num_pipelines is not None:
        lines = dealing.deal(
            lines, copies=copies, costs=costs, holdings=held, share_size=1
        )
      rest = scheduler.plan_rows(lines, costs=costs, holdings=held)
      rest_ms = timeline_lib.span_ms(rest.rows, costs)
      pauses.append(
          Pause(victim, died_ms, died_ms + rest_ms - timeline.span_ms)
      )
  return tuple(pauses)


def _die(
    timeline: timeline_lib.Timeline,
    first: lines_lib.Line,
    roles: failover.Roles,
    num_pipelines: int,
    *,
    died_ms: float,
    victim: int,
) -> tuple[list[lines_lib.Line], dict, dict[int, set[int]]]:
  """Returns lines, holdings and copies after a death in the first pipeline.

  All are alike; nodes of the first are those of `roles`.
  """
  lines, held, copies = [], {}, {}
  for index in range(num_pipelines):
    add_nodes = index * (1 + max(roles.nodes))
    add_microbatches = index * (1 + first.microbatches[-1])
    for node, row in timeline.rows.items():
      done = [s.instruction for s in row if s.end_ms <= died_ms]
      held[node + add_nodes] = holdings_lib.after(
          i.renumbered(add_nodes=add_nodes, add_microbatches=add_microbatches)
          for i in done
      )
    own = roles.renumbered({node: node + add_nodes for node in roles.nodes})
    if not index:
      own, held = failover.fail_over(own, held, {victim})
    for stage, node in (*enumerate(own.owners), *own.shadows.items()):
      copies.setdefault(node, set()).add(stage)
    microbatches = [m + add_microbatches for m in first.microbatches]
    lines.append(
        lines_lib.Line(own.owners, microbatches, first.in_flight, index)
    )
  return lines, held, copies
