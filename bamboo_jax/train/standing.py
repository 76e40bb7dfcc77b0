"""Where a node of a cluster stands: how far it is, who trains what, and state.

A change of the layout that needs state to be copied is made in two phases: all
fetch what they need, and once all have said so it is valid. If somebody dies in
between, it is valid if anyone has seen that all had said so, and else it never
happened.
"""

from collections.abc import Callable, Collection

from bamboo_jax.cluster import client as client_lib
from bamboo_jax.recovery import agreement as agreement_lib
from bamboo_jax.recovery import assignment as layout_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.train import state_moves

# Returns the state of a stage at the start, or after some steps.
RestoreFn = Callable[[int, int], spec_lib.StageState]


class Standing:
  """What this node knows of the run.

  Args:
    engine: Has the local node.
    client: Talks to the agent.
    moves: Moves state.
    rules: How layouts change.
    restore: Returns the state after so many steps, of a stage.

  Attributes:
    steps: Number of committed steps; -1 before it is known.
    version: Counts the changes of the layout; -1 before it is known.
    rollbacks: How often training has gone back.
    layout: Who trains what.
  """

  def __init__(
      self,
      engine: engine_lib.Engine,
      client: client_lib.Client,
      *,
      moves: state_moves.StateMoves,
      rules: layout_lib.Rules,
      restore: RestoreFn,
  ) -> None:
    self._engine = engine
    self._client = client
    self._moves = moves
    self._rules = rules
    self._restore = restore
    self._settled: tuple | None = None
    self.steps = self.version = -1
    self.rollbacks = 0
    self.layout = layout_lib.Layout()

  @property
  def is_writer(self) -> bool:
    """Whether this node writes what is written once."""
    return self._client.number == min(self.layout.nodes)

  def begin(self, layout: layout_lib.Layout, *, steps: int) -> None:
    """Stands at the start of a run, or where a checkpoint has been made."""
    self.steps, self.version = steps, 0
    self.set_layout(layout)
    for stage in self._stages(layout):
      self._moves.put(stage, self._restore(steps, stage))

  def status(
      self, holdings: holdings_lib.Holdings, *, saved: Collection[int]
  ) -> agreement_lib.Status:
    """Returns what this node says of itself."""
    return agreement_lib.Status(
        steps=self.steps,
        version=self.version,
        rollbacks=self.rollbacks,
        layout=self.layout,
        holdings=holdings,
        saved=tuple(saved),
        address=self._moves.address,
    )

  def set_layout(self, layout: layout_lib.Layout) -> None:
    """Takes the role that this node has in a layout, for which it has state."""
    self.layout = layout
    self._engine.set_pipelines(
        [r.owners for r in layout.roles],
        [r.shadows for r in layout.roles],
        layout.shares,
    )
    if layout.roles and self.is_writer:
      self._client.send("facts", facts=layout.to_json())

  def catch_up(
      self,
      agreement: agreement_lib.Agreement,
      *,
      commit: Callable[[], None],
  ) -> None:
    """Does what others have done already.

    Args:
      agreement: What all have agreed on.
      commit: Commits the step that is going on.
    """
    if self._moves.fetched_for == agreement.known_version > self.version:
      self._moves.install()
      if agreement.rollbacks > self.rollbacks:
        self.steps = agreement.steps
    if -1 < self.steps < agreement.steps:
      commit()
    self.steps = agreement.steps
    self.version = agreement.version
    self.rollbacks = agreement.rollbacks
    self.set_layout(agreement.layout)

  def plan(self, alive: Collection[int]) -> layout_lib.Change:
    """Returns what would be done between two steps if `alive` were members."""
    view = self._client.newest
    return self._rules.improve(
        self.layout,
        {*alive, *self.layout.nodes},
        zones={m.number: m.zone for m in view.members},
        leaving=view.leaving,
    )

  def improve(self) -> layout_lib.Change | None:
    """Does what should be done between two steps; returns it, if anything."""
    view = self._client.adopted
    facts = (view.number, self.layout)
    if facts == self._settled:
      return None
    change = self._rules.improve(
        self.layout,
        view.numbers,
        zones={m.number: m.zone for m in view.members},
        leaving=view.leaving,
    )
    if change.layout == self.layout:
      self._settled = facts
      return None
    self.carry_out(change)
    return change

  def carry_out(self, change: layout_lib.Change, *, restored: int = 0) -> None:
    """Makes a layout valid, everywhere at once.

    Args:
      change: Has the layout, and what has to be copied.
      restored: The step to go back to, if it goes back.

    Raises:
      ViewChangedError, OSError: Somebody is gone.
    """
    version = self.version + 1
    if change.rolls_back:
      stages = self._stages(change.layout)
      states = {stage: self._restore(restored, stage) for stage in stages}
      self._moves.keep(states, version=version)
    else:
      self._moves.prefetch(change.copies, version=version)
    self._client.gather(f"moved {version}", None)
    self._moves.install()
    self.version = version
    if change.rolls_back:
      self.steps, self.rollbacks = restored, self.rollbacks + 1
    self.set_layout(change.layout)

  def _stages(self, layout: layout_lib.Layout) -> list[int]:
    """Returns the stages of which this node needs the state."""
    me, stages = self._client.number, set()
    for roles in layout.roles:
      stages |= {*roles.stages_of(me), *roles.replicas_of(me)}
    return sorted(stages)
