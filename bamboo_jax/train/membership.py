"""Who owns and shadows which stage, kept in step with the engine.

The decisions are pure functions of `schedule.failover`; this carries them out.
"""

from collections.abc import Collection, Sequence

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train import rows as rows_lib


class Membership:
  """The roles of all nodes."""

  def __init__(
      self,
      engine: engine_lib.Engine,
      *,
      rows: rows_lib.RowPlanner,
      spares: Sequence[int],
      rereplicate: str,
  ) -> None:
    """Takes over the roles that the engine starts with.

    Args:
      engine: The nodes; its owners and shadows are changed from here on.
      rows: Plans rows.
      spares: Nodes that take the places of lost ones, in this order.
      rereplicate: When stages that a death left without a replica get one:
        "at_commit" of the step, or "at_repair", when a spare comes.
    """
    if rereplicate not in ("at_commit", "at_repair"):
      raise ValueError(
          f"rereplicate must be at_commit or at_repair, got {rereplicate!r}."
      )
    self._engine = engine
    self._rows = rows
    self._spares = list(spares)
    self._rereplicate = rereplicate
    self._holdings = {}
    self._timelines: dict[int, timeline_lib.Timeline] = {}
    self.roles: list[failover.Roles] = []
    for pipeline in range(len(engine.owners)):
      self._set_roles(pipeline, rows.roles(pipeline))

  def timelines(self) -> list[timeline_lib.Timeline]:
    """Returns when the instructions of a whole step run, by pipeline."""
    for pipeline, roles in enumerate(self.roles):
      if pipeline not in self._timelines:
        self._timelines[pipeline] = self._rows.whole(pipeline, roles).timeline
    return [self._timelines[p] for p in range(len(self.roles))]

  def rest(self, pipeline: int) -> timeline_lib.Timeline:
    """Returns what a pipeline still owes after `fail_over`."""
    return self._rows.rest(
        pipeline, self.roles[pipeline], self._holdings[pipeline]
    )

  def places_of(self, nodes: Collection[int]) -> list[tuple[int, int]]:
    """Returns pipeline and stage of all stages that `nodes` own."""
    return [
        (pipeline, stage)
        for pipeline, roles in enumerate(self.roles)
        for stage, owner in enumerate(roles.owners)
        if owner in nodes
    ]

  def fail_over(self, lost: Collection[int]) -> list[int]:
    """Gives the stages of lost nodes to their shadows.

    Returns:
      The pipelines that the nodes were in.

    Raises:
      base.UnrecoverableHereError: A shadow is lost too.
    """
    affected = sorted({pipeline for pipeline, _ in self.places_of(lost)})
    after = {
        pipeline: failover.fail_over(
            self.roles[pipeline], self._engine.holdings(pipeline), lost
        )
        for pipeline in affected
    }
    for pipeline, (roles, holdings) in after.items():
      self._engine.drain(pipeline)
      self._holdings[pipeline] = holdings
      self._set_roles(pipeline, roles)
    return affected

  def repair(self, step: int) -> None:
    """Fills lost places with spares and restores replicas, after `step`."""
    for pipeline, roles in enumerate(self.roles):
      plan = failover.repair(roles, self._spares)
      self._spares = [s for s in self._spares if s not in plan.used]
      if not plan.used and self._rereplicate == "at_repair":
        continue
      if self._rows.mode == "none":
        continue
      for copy in (*plan.owner_copies, *plan.replica_copies):
        self._engine.hold(copy.destination, copy.stage)
        self._engine.copy_state(
            copy.stage, source=copy.source, to=copy.destination
        )
      self._set_roles(pipeline, plan.roles)
    self._engine.check_replicas(step)

  def _set_roles(self, pipeline: int, roles: failover.Roles) -> None:
    self.roles[pipeline : pipeline + 1] = [roles]
    self._timelines.pop(pipeline, None)
    self._engine.set_roles(pipeline, owners=roles.owners, shadows=roles.shadows)
