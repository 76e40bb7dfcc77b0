"""The rows of a step: at its start, and of its rest after a failure."""

from collections.abc import Mapping
import dataclasses

from bamboo_jax.plan import memory as memory_lib
from bamboo_jax.plan import planner
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline as timeline_lib


@dataclasses.dataclass(frozen=True)
class RowPlanner:
  """Plans the rows of one pipeline at a time; pure.

  Attributes:
    plan: Costs of the stages, microbatches of the pipelines.
    mode: Which redundant forward passes to run, a mode of `redundancy`.
  """

  plan: planner.Plan
  mode: str

  def whole(
      self, pipeline: int, roles: failover.Roles
  ) -> timeline_lib.Timeline:
    """Returns when the instructions of a whole step run."""
    shadows = {}
    if self.mode == "eager":
      shadows = {
          stage: node
          for stage, node in roles.shadows.items()
          if stage == 0 or roles.owners[stage - 1] == node
      }
    return self._play(pipeline, roles, {}, shadows)

  def rest(
      self,
      pipeline: int,
      roles: failover.Roles,
      holdings: dict[int, holdings_lib.Holdings],
  ) -> timeline_lib.Timeline:
    """Returns when the instructions of the rest of a step run."""
    return self._play(pipeline, roles, holdings, {})

  def _play(
      self,
      pipeline: int,
      roles: failover.Roles,
      holdings: Mapping[int, holdings_lib.Holdings],
      shadows: Mapping[int, int],
  ) -> timeline_lib.Timeline:
    plan = self.plan
    common = dict(
        owners=roles.owners,
        microbatches=plan.batch.microbatches(pipeline),
        costs=plan.costs,
        holdings=holdings,
    )
    in_flight = memory_lib.in_flight_bounds(
        schedule=plan.schedule_name,
        num_stages=plan.num_stages,
        num_microbatches=plan.batch.num_microbatches,
    )
    schedule = scheduler.plan_rows(
        **common, in_flight=in_flight, shadows=shadows
    )
    return timeline_lib.play(schedule, **common)
