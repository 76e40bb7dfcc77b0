"""Who owns and shadows which stage, kept in step with the engine.

What to do about a death is decided by `recovery.decide`; this carries it out.
"""

from collections.abc import Collection, Sequence

from bamboo_jax import base
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.recovery import decide
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import timeline as timeline_lib


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
    self._ladder = ladder_lib.Ladder(
        shadow=rows.mode != "none",
        reroute="none",
        reconfigure=False,
        rereplicate=rereplicate,
    )
    self._engine = engine
    self._rows = rows
    self._holdings = {}
    self._timelines: dict[int, timeline_lib.Timeline] = {}
    all_roles = [rows.roles(p) for p in range(len(engine.owners))]
    self.state = ladder_lib.State(
        pipelines=tuple(
            pipelines_lib.Pipeline(rows.plan.partition, roles)
            for roles in all_roles
        ),
        spares=tuple(spares),
    )
    for pipeline, roles in enumerate(all_roles):
      self._set_roles(pipeline, roles)

  @property
  def roles(self) -> list[failover.Roles]:
    """Owners and shadows of each pipeline."""
    return [pipeline.roles for pipeline in self.state.pipelines]

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
    decision = decide.decide(
        self.state,
        ladder_lib.Change(lost=frozenset(lost)),
        ladder=self._ladder,
        when="step",
    )
    if decision.rung not in ("none", "shadow"):
      first = decision.gone[0][0]
      raise base.UnrecoverableHereError(
          tuple(stage for pipeline, stage in decision.gone if pipeline == first)
      )
    affected = sorted({pipeline for pipeline, _ in self.places_of(lost)})
    for pipeline in affected:
      _, self._holdings[pipeline] = failover.fail_over(
          self.roles[pipeline], self._engine.holdings(pipeline), lost
      )
    self.state = decision.state
    for pipeline in affected:
      self._engine.drain(pipeline)
      self._set_roles(pipeline, self.roles[pipeline])
    return affected

  def repair(self, step: int) -> None:
    """Fills lost places with spares and restores replicas, after `step`."""
    decision = decide.decide(
        self.state,
        ladder_lib.NOTHING,
        ladder=self._ladder,
        when="boundary",
    )
    self.state = decision.state
    for pipeline, plan in decision.repairs.items():
      for copy in (*plan.owner_copies, *plan.replica_copies):
        self._engine.load_programs(copy.destination, copy.stage)
        replicas.copy_state(
            self._engine, copy.stage, source=copy.source, to=copy.destination
        )
      self._set_roles(pipeline, plan.roles)
    replicas.check_replicas(self._engine, step)

  def _set_roles(self, pipeline: int, roles: failover.Roles) -> None:
    self._timelines.pop(pipeline, None)
    self._engine.set_roles(pipeline, owners=roles.owners, shadows=roles.shadows)
