"""Predicts the delay of a step in which a node dies.

The rest of the step is planned as after a real failure, from the instructions
that the others have finished by then, and played. Detection, planning and
draining are not included.
"""

from collections.abc import Sequence

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    dealing,
    failover,
    holdings as holdings_lib,
    lines as lines_lib,
    simulate as simulate_lib,
    timeline as timeline_lib,
)


def predict_pauses(
    timeline: timeline_lib.Timeline,
    *,
    roles: failover.Roles,
    microbatches: Sequence[int],
    costs: costs_lib.StageCosts,
    in_flight: Sequence[int] | None,
    num_times: int = 20,
    victims: Sequence[base.NodeId] | None = None,
    num_pipelines: int | None = None,
) -> list[float]:
  """Returns the delay in ms for each victim and time of death.

  A victim dies in the middle of each of `num_times` equal parts of the step;
  passes that run at that time are repeated. The owed work is dealt over
  `num_pipelines`, all like this one, by microbatch; None: the shadow alone
  does it. Raises `base.UnrecoverableHereError` if a stage of a victim has no
  shadow.
  """
  alike = []
  for index in range(num_pipelines or 1):
    add_nodes = index * (1 + max(roles.nodes))
    add_microbatches = index * (1 + microbatches[-1])
    alike.append(
        (
            timeline.renumbered(add_nodes=add_nodes, add_microbatches=add_microbatches),
            roles.renumbered({node: base.NodeId(node + add_nodes) for node in roles.nodes}),
            [m + add_microbatches for m in microbatches],
        )
    )
  pauses_ms = []
  for k in range(num_times):
    died_ms = timeline.span_ms * (k + 0.5) / num_times
    for victim in roles.nodes if victims is None else victims:
      lines = []
      held: dict[base.NodeId, holdings_lib.Holdings] = {}
      copies: dict[base.NodeId, set[base.StageId]] = {}
      for index, (played, own, mine) in enumerate(alike):
        done = {
            node: holdings_lib.after(s.instruction for s in row if s.end_ms <= died_ms)
            for node, row in played.rows.items()
        }
        if not index:  # The death is in the first pipeline.
          own, done = failover.fail_over(own, done, {victim})
        held |= done
        for stage, node in (*base.by_stage(own.owners), *own.shadows.items()):
          copies.setdefault(node, set()).add(stage)
        lines.append(lines_lib.Line(own.owners, mine, in_flight, index))
      if num_pipelines is not None:
        lines = dealing.deal(lines, copies=copies, costs=costs, holdings=held, share_size=1)
      rest_ms = simulate_lib.simulate(lines, costs=costs, holdings=held).span_ms
      pauses_ms.append(died_ms + rest_ms - timeline.span_ms)
  return pauses_ms
