"""Decides how training continues when nodes are lost or join.

The recovery ladder: the cheapest rung that suffices is taken. One process, a
cluster and the simulator decide here, once per event.

  a loss, at any time           at the end of a step

  shadow      its shadow lives  spares take places, replicas are made
  reroute     others compute    new pipelines, if their pause pays
  drop        samples dropped   a node under notice hands over: to a
  reconfigure a copy survives     spare, by new pipelines, or to the
  checkpoint  otherwise           nodes that would replace it if it died

A spare that takes a place relieves a node that will be preempted, takes a stage
without an owner, or a stage of a node that owns several, in this order. It copies
the state from a live node.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import types
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import layout as layout_lib, moves, planner as planner_lib
from bamboo_jax.schedule import failover

NodeId = base.NodeId
Pipeline = pipelines_lib.Pipeline
Layout = layout_lib.Layout

# The rungs, the cheapest first.
RUNGS = (
    "none",  # No node that trains is affected.
    "repair",  # Between two steps spares take places, replicas are made.
    "shadow",  # Shadows finish the step for the lost.
    "reroute",  # Other pipelines compute for the lost stages.
    "drop",  # The samples of the pipeline are dropped.
    "reconfigure",  # New pipelines, state from live copies; repeats the step.
    "checkpoint",  # New pipelines, state from the last checkpoint.
    "wait",  # Too few nodes for a pipeline: training waits for more.
    "stop",  # No rung that is switched on applies: the run ends.
)
# After these the step in flight continues, and no state is copied.
IMMEDIATE = frozenset({"none", "shadow", "reroute", "drop"})
_NOBODY: frozenset[NodeId] = frozenset()
_EVEN = 1e-9  # New pipelines must be better by more than rounding errors.


@dataclasses.dataclass(frozen=True)
class Change:
  """The events since the last decision; nodes by number.

  Attributes:
    lost: Nodes that died or left.
    joined: New nodes. A node that returns has a new number, because its old one
      may still mark a vacant place.
    noticed: Nodes whose preemption was announced.
    zones: Zone of each node; missing nodes have none.
  """

  lost: frozenset[NodeId] = frozenset()
  joined: tuple[NodeId, ...] = ()
  noticed: frozenset[NodeId] = frozenset()
  zones: Mapping[NodeId, str] = dataclasses.field(default_factory=dict)


NOTHING = Change()


@dataclasses.dataclass(frozen=True)
class Ladder:
  """The rungs that are switched on; by default as in a cluster.

  Bamboo is shadow, reconfigure and checkpoint; Oobleck reconfigure and
  checkpoint; ReCycle reroute by stage and checkpoint; Varuna checkpoint.

  Attributes:
    has_replicas: Stages have replicas, so shadows finish steps.
    reroute: The nodes that compute for lost stages. "shares": all nodes with a copy of
      the stage, each for some shares, even if its shadow lives. "whole_shares": pipelines
      without lost stages, each for some shares of the whole pipeline, as programs of SPMD
      need. "stage": owners of the same stage, as in ReCycle; only simulated. Or "none".
  """

  options: config_lib.RecoverySection = config_lib.RecoverySection()
  has_replicas: bool = True
  reroute: str = "shares"


@dataclasses.dataclass(frozen=True)
class Decision:
  """The rung that is taken, and the layout that follows.

  Attributes:
    rung: One of `RUNGS`; with several pipelines the most expensive one taken.
    layout: From now on; by `decide` without shares, which `assignment` deals.
    reason: Why that rung was taken, for people.
    is_repaired: Whether spares took places, or replicas are made.
    rolls_back: Whether the steps since the last checkpoint are lost.
    copies: State to copy between nodes first, by `assignment`.
  """

  rung: str
  layout: Layout
  reason: str
  is_repaired: bool = False
  rolls_back: bool = False
  copies: tuple[failover.StageCopy, ...] = ()

  @property
  def is_immediate(self) -> bool:
    """Whether the step in flight continues without copies of state."""
    return self.rung in IMMEDIATE


def decide(
    layout: Layout,
    change: Change,
    *,
    ladder: Ladder,
    planner: planner_lib.Planner | None = None,
    when: str = "step",
) -> Decision:
  """Returns the decision about `change`.

  Args:
    layout: Only its pipelines, spares and leaving nodes count.
    change: Events; nodes that are not in `layout` are ignored.
    planner: None: pipelines are only repaired, and after the rung "checkpoint"
      the caller makes new ones.
    when: "step": a step is in flight, so only losses are handled. "boundary": a
      step has been committed, or none runs.
  """
  asked = _Question(ladder, planner, change.zones)
  layout = _note(layout, change)
  if layout.pipelines:
    decision = asked.handle_losses(layout, change.lost, dead=change.lost)
    if when == "boundary" and decision.is_immediate:
      decision = asked.hand_over(asked.improve(decision))
    return decision
  if when == "boundary" and planner:
    return asked.start(layout, planner)
  return Decision("none", layout, "no pipeline trains")


def _note(layout: Layout, change: Change) -> Layout:
  return dataclasses.replace(
      layout,
      spares=(
          *(n for n in layout.spares if n not in change.lost),
          *(n for n in change.joined if n not in change.lost),
      ),
      leaving=(layout.leaving | change.noticed) - change.lost,
  )


@dataclasses.dataclass(frozen=True)
class _Question:
  ladder: Ladder
  planner: planner_lib.Planner | None
  zones: Mapping[NodeId, str]

  def start(self, layout: Layout, planner: planner_lib.Planner) -> Decision:
    """Makes the first pipelines."""
    for nodes in _candidates(layout):
      try:
        pipelines = planner.fresh(nodes, self.zones)
      except base.InfeasibleError as error:
        reason = str(error)
      else:
        after = _with_pipelines(layout, pipelines)
        return Decision("checkpoint", after, "there are enough nodes")
    return Decision("wait", layout, reason)

  def handle_losses(
      self, layout: Layout, lost: frozenset[NodeId], *, dead: frozenset[NodeId]
  ) -> Decision:
    """Takes the cheapest rung that gives all stages of `lost` nodes an owner.

    `dead` are the lost nodes whose state is gone; the others are leaving.
    """
    pipelines, gone = list(layout.pipelines), []
    hit = [i for i, p in enumerate(pipelines) if not lost.isdisjoint(p.nodes)]
    for i in hit:
      partition, roles, vacant = pipelines[i].partition, pipelines[i].roles, pipelines[i].vacant
      roles, orphans = failover.fail_over(roles, lost, vacant)
      pipelines[i] = Pipeline(partition, roles, vacant | orphans)
      gone += [types.Place(i, stage) for stage in sorted(orphans)]
    if not hit:
      return Decision("none", layout, "no node that trains is lost")
    if self.ladder.reroute in ("shares", "whole_shares"):
      # `_can_reroute` needs one.
      pipelines = [p for p in pipelines if p.nodes] or pipelines
    after = dataclasses.replace(layout, pipelines=tuple(pipelines))
    if not gone:
      return Decision("shadow", after, "every lost stage has a live shadow")
    places = ", ".join(map(str, gone))
    if self._can_reroute(after.pipelines):
      reason = f"other pipelines have stages {places} too"
      return Decision("reroute", after, reason)
    if self.ladder.options.drop and not all(p.vacant for p in pipelines):
      reason = f"the others go on without the pipelines of {places}"
      return Decision("drop", after, reason)
    return self._make_new(layout, dead=dead, places=places)

  def _can_reroute(self, pipelines: tuple[Pipeline, ...]) -> bool:
    if self.ladder.reroute == "whole_shares":
      return any(not p.vacant for p in pipelines)
    if self.ladder.reroute == "shares":
      owned = frozenset().union(*moves.owned_layers(pipelines).values())
      return len(owned) == pipelines[0].partition.num_layers
    return self.ladder.reroute == "stage" and all(
        find_owner(pipelines, i, stage) is not None
        for i, pipeline in enumerate(pipelines)
        for stage in pipeline.vacant
    )

  def _make_new(self, layout: Layout, *, dead: frozenset[NodeId], places: str) -> Decision:
    """Makes new pipelines; without leaving nodes if no node is dead."""
    options, planner = self.ladder.options, self.planner
    has_copies = not moves.lost_layers(layout.pipelines, {*layout.live} - dead)
    stopped = _with_pipelines(layout, (), dead=dead)
    for nodes in _candidates(layout, dead=dead)[: 2 if dead else 1]:
      try:
        if options.reconfigure and planner and has_copies:
          pipelines = planner.adapt(layout.pipelines, nodes)
          after = _with_pipelines(layout, pipelines, dead=dead)
          return Decision("reconfigure", after, f"{places} have copies elsewhere")
        reason = f"{places} have no {'owner' if has_copies else 'copy'}"
        if not options.checkpoint:
          return Decision("stop", stopped, reason)
        pipelines = planner.fresh(nodes, self.zones) if planner else ()
        after = _with_pipelines(layout, pipelines, dead=dead)
        return Decision("checkpoint", after, reason, rolls_back=True)
      except base.InfeasibleError as error:
        reason = str(error)
    rung = "wait" if options.checkpoint else "stop"
    return Decision(rung, stopped, reason, rolls_back=True)

  def improve(self, decision: Decision) -> Decision:
    """Gives places to spares between two steps, or makes new pipelines.

    New pipelines are made only if the time that they save exceeds the pause.
    """
    before = decision.layout
    after, done = repair(before, has_replicas=self.ladder.has_replicas)
    if self.planner:
      better = self._heed_notice(after) or self._find_better(before, after)
      if better:
        return better
    if not done:
      return decision
    rung = "repair" if decision.rung == "none" else decision.rung
    return dataclasses.replace(decision, rung=rung, layout=after, reason=done, is_repaired=True)

  def _heed_notice(self, layout: Layout) -> Decision | None:
    """Returns new pipelines for announced losses while all copies exist."""
    # No node would be left to move to.
    if not layout.leaving or layout.leaving.issuperset(layout.live):
      return None
    decision = self.handle_losses(layout, layout.leaving, dead=_NOBODY)
    if decision.rung not in ("reconfigure", "checkpoint"):
      return None
    return dataclasses.replace(decision, reason=f"notice: {decision.reason}", rolls_back=False)

  def hand_over(self, decision: Decision) -> Decision:
    """Moves the stages of leaving nodes to others, between two steps.

    Returns `decision` unchanged if that would need a checkpoint or drop
    samples.
    """
    layout, leaving = decision.layout, decision.layout.leaving
    is_trained = any(not leaving.isdisjoint(p.nodes) for p in layout.pipelines)
    if not is_trained or not self.ladder.options.hand_over:
      return decision
    # As if they had died.
    without = _note(layout, Change(lost=leaving))
    handed = self.handle_losses(without, leaving, dead=leaving)
    if handed.is_immediate:
      handed = self.improve(handed)
    if handed.rolls_back or handed.rung in ("drop", "stop"):
      return decision
    # Alive until the notice ends, so spares.
    rest = (n for n in layout.live if n in leaving)
    return dataclasses.replace(
        handed,
        reason=f"notice: {handed.reason}",
        layout=dataclasses.replace(
            handed.layout, spares=(*handed.layout.spares, *rest), leaving=leaving
        ),
    )

  def _find_better(self, before: Layout, repaired: Layout) -> Decision | None:
    """Returns new pipelines if they train more within the horizon."""
    options, planner = self.ladder.options, self.planner
    if not planner or not options.reconfigure and not options.checkpoint:
      return None
    usable = _candidates(before)[0]
    may_stay = planner.may_stay(before.pipelines) and all(
        {*usable}.issuperset(p.nodes) for p in before.pipelines
    )
    rung = "reconfigure" if options.reconfigure else "checkpoint"
    try:
      # The same question, without the work of planning: none are faster.
      if may_stay and planner.times.step_secs(before.pipelines) <= planner.best_secs(len(usable)):
        return None
      if options.reconfigure:
        pipelines = planner.adapt(before.pipelines, usable)
      else:
        pipelines = planner.fresh(usable, self.zones)
    except base.InfeasibleError:
      return None
    if pipelines == before.pipelines:
      return None  # No pause, but no gain either.
    now = self._steps("repair", before.pipelines, repaired.pipelines)
    new = self._steps(rung, before.pipelines, pipelines)
    # With several stages on a node in both, the same nodes would change places at every step.
    must_go = planner.may_stay(pipelines) and not planner.may_stay(repaired.pipelines)
    if new <= now * (1 + _EVEN) and not must_go:
      return None
    return Decision(
        rung,
        _with_pipelines(before, pipelines),
        f"{new:.1f} rather than {now:.1f} steps in the next {options.horizon_secs:g} s",
    )

  def _steps(self, rung: str, before: tuple[Pipeline, ...], after: tuple[Pipeline, ...]) -> float:
    if all(p.vacant for p in after):
      return 0.0  # Pipelines with vacant stages have no predicted time.
    assert self.planner is not None
    pause_secs = 0.0
    if after != before:
      pause_secs = self.planner.times.pause_secs(rung, before, after)
    left_secs = max(0.0, self.ladder.options.horizon_secs - pause_secs)
    return left_secs / self.planner.times.step_secs(after)


def repair(layout: Layout, *, has_replicas: bool) -> tuple[Layout, str]:
  """Returns the layout after a repair between two steps, and a description; "" if it is the same.

  Spares take vacant places and those of leaving nodes. With replicas, missing ones are made, and
  a node may own several stages.
  """
  pipelines, num_replicas = list(layout.pipelines), 0
  spares, taken = [node for node in layout.spares if node not in layout.leaving], set[NodeId]()
  for i, pipeline in enumerate(pipelines):
    places = [
        s
        for s, owner in base.by_stage(pipeline.roles.owners)
        if (s in pipeline.vacant or owner in layout.leaving)
        and find_owner(pipelines, i, s) is not None  # A source of the state.
    ]
    takers = dict(zip(places, spares, strict=False))  # Either may be fewer.
    pipelines[i] = filled = _fill(pipeline, takers)
    used = [*takers.values()]
    if has_replicas and not filled.vacant:
      more = failover.repair(filled.roles, spares[len(used) :])  # Without `takers`.
      pipelines[i] = Pipeline(filled.partition, more.roles)
      used += more.used
      num_replicas += more.num_replicas
    taken.update(used)
    spares = spares[len(used) :]
  done = []
  if taken:
    done.append("1 spare takes a place" if len(taken) == 1 else f"{len(taken)} spares take places")
  if num_replicas:
    replicas = "replica is" if num_replicas == 1 else "replicas are"
    done.append(f"{num_replicas} {replicas} made")
  owners = {node for pipeline in pipelines for node in pipeline.nodes}
  relieved = [  # Alive until they are preempted.
      node for pipeline in layout.pipelines for node in pipeline.nodes if node not in owners
  ]
  after = dataclasses.replace(
      layout,
      pipelines=tuple(pipelines),
      spares=(*(n for n in layout.spares if n not in taken), *relieved),
  )
  return after, ", ".join(done)


def _fill(pipeline: Pipeline, takers: Mapping[base.StageId, NodeId]) -> Pipeline:
  """Gives stages to `takers`; drops replicas that are no longer on a shadow."""
  roles = pipeline.roles
  owners = tuple(takers.get(s, n) for s, n in base.by_stage(roles.owners))
  shadows = {s: n for s, n in roles.shadows.items() if n == failover.natural_shadow(owners, s)}
  return Pipeline(
      pipeline.partition, failover.Roles(owners, shadows), pipeline.vacant.difference(takers)
  )


def find_owner(pipelines: Sequence[Pipeline], index: int, stage: base.StageId) -> NodeId | None:
  """Returns the owner of `stage` in a pipeline of the same partition, or None.

  Preferably in pipeline `index` itself.
  """
  pipeline = pipelines[index]
  for other in (pipeline, *pipelines):
    if stage not in other.vacant and other.partition == pipeline.partition:
      return other.roles.owners[stage]
  return None


def _candidates(
    layout: Layout, *, dead: frozenset[NodeId] = _NOBODY
) -> tuple[tuple[NodeId, ...], ...]:
  """Returns sets of live nodes to make pipelines of, best first.

  The second one includes nodes under notice, the first only if none stay.
  """
  alive = tuple(node for node in layout.live if node not in dead)
  usable = tuple(n for n in alive if n not in layout.leaving) or alive
  return (usable,) if usable == alive else (usable, alive)


def _with_pipelines(
    layout: Layout, pipelines: tuple[Pipeline, ...], *, dead: frozenset[NodeId] = _NOBODY
) -> Layout:
  """Returns `layout` with `pipelines`; live nodes without a stage are spares."""
  training = {node for pipeline in pipelines for node in pipeline.nodes}
  return dataclasses.replace(
      layout,
      pipelines=pipelines,
      spares=tuple(node for node in layout.live if node not in training and node not in dead),
  )
