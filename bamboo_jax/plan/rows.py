"""The rows of a step: at its start, and of its rest after a failure."""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax.plan import memory as memory_lib
from bamboo_jax.plan import planner
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import redundancy
from bamboo_jax.schedule import timeline as timeline_lib


@dataclasses.dataclass(frozen=True)
class RowPlanner:
  """Plans the rows of one pipeline at a time; pure.

  Attributes:
    plan: Costs of the stages, microbatches of the pipelines.
    mode: Which redundant forward passes to run, one of `redundancy.MODES`.
    margin: See `redundancy.plan_redundancy`.
    budget: See `redundancy.plan_redundancy`.
  """

  plan: planner.Plan
  mode: str
  margin: float = 0.0
  budget: float = 0.0

  def roles(self, pipeline: int) -> failover.Roles:
    """Returns who owns and who shadows the stages at the start of a run."""
    owners = self.plan.owners[pipeline]
    if self.mode == "none":
      return failover.Roles(owners)
    return failover.Roles.initial(owners)

  def whole(
      self,
      pipeline: int,
      roles: failover.Roles,
      *,
      shares: Sequence[int] | None = None,
  ) -> redundancy.RedundancyPlan:
    """Returns the rows of a whole step.

    Args:
      pipeline: Index of the pipeline.
      roles: Who owns and shadows its stages.
      shares: Shares of the batch that it computes; None: those of the plan.
    """
    return self._plan(self.mode, pipeline, roles, {}, shares)

  def rest(
      self,
      pipeline: int,
      roles: failover.Roles,
      holdings: Mapping[int, holdings_lib.Holdings],
      *,
      shares: Sequence[int] | None = None,
  ) -> timeline_lib.Timeline:
    """Returns when the rest of a step runs, without redundant passes."""
    return self._plan("lazy", pipeline, roles, holdings, shares).timeline

  def _plan(
      self,
      mode: str,
      pipeline: int,
      roles: failover.Roles,
      holdings: Mapping[int, holdings_lib.Holdings],
      shares: Sequence[int] | None,
  ) -> redundancy.RedundancyPlan:
    plan, in_flight = self.plan, None
    microbatches = plan.batch.microbatches(pipeline)
    if shares is not None:
      microbatches = plan.batch.microbatches_of(shares)
    if plan.schedule_name != "gpipe":
      in_flight = memory_lib.in_flight_bounds(
          schedule=plan.schedule_name,
          num_stages=plan.num_stages,
          num_microbatches=len(microbatches),
      )
    return redundancy.plan_redundancy(
        mode,
        roles=roles,
        microbatches=microbatches,
        costs=plan.costs,
        in_flight=in_flight,
        holdings=holdings,
        margin=self.margin,
        budget=self.budget,
    )
