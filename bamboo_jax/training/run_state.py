"""The replicated state of a run: steps done, layout, and the arrays.

A change of the layout that copies state is a two-phase commit: all members
fetch their new state and report it; once all have, the layout is valid. After a
death in between it is valid if any survivor received every report; otherwise it
is discarded. Between nodes of this process state is copied; between processes each
array is a message of the transport: a stage may be larger than what may be in flight.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import time
from typing import Any

import jax
import optax

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.checkpoint import parts, writer as writer_lib
from bamboo_jax.cluster import views
from bamboo_jax.recovery import (
    agreement as agreement_lib,
    assignment,
    layout as layout_lib,
    slowness,
    survival,
)
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import failover, holdings as holdings_lib
from bamboo_jax.training import cohort as cohort_lib, failures

# By node and stage, then by the name of the layer.
Layers = Mapping[str, spec_lib.LayerState]
StageStates = dict[tuple[base.NodeId, base.StageId], Layers]


@dataclasses.dataclass(frozen=True)
class Restored:
  """A member's report on a checkpoint that all roll back to.

  Attributes:
    is_damaged: Whether it could not read its part.
    saved: Steps with a complete checkpoint that this member finds.
  """

  is_damaged: bool
  saved: tuple[base.StepId, ...]


@dataclasses.dataclass(eq=False)
class RunState:
  """One member's copy of the state of the run.

  Attributes:
    steps: Number of committed steps; -1 before it is known.
    version: Counts the changes of the layout; -1 before it is known.
    rollbacks: Number of returns to a checkpoint.
    rung: Rung of the last change between two steps; "none" before the first.
    named: Slow nodes so far; newcomers learn them from the others.
    num_skipped: Number of skipped steps in a row before the next one.
    damaged: Steps whose checkpoints were found damaged, until a step is
      committed.
    saved_in: The last view in which copies were at risk, and state was saved.
    fetched_for: Version of the layout for which state was last fetched.
  """

  engine: engine_lib.Engine
  cohort: cohort_lib.Cohort
  _: dataclasses.KW_ONLY
  rules: assignment.RecoveryRules
  writer: writer_lib.Writer
  cluster: config_lib.ClusterSection = config_lib.ClusterSection()
  steps: base.StepId = base.StepId(-1)
  version: int = -1
  rollbacks: int = 0
  layout: layout_lib.Layout = layout_lib.Layout()
  rung: str = "none"
  damaged: tuple[base.StepId, ...] = ()
  named: tuple[slowness.Named, ...] = ()
  num_skipped: int = 0
  saved_in: base.ViewId = views.EMPTY.number
  fetched_for: int = -1
  _fetched: StageStates = dataclasses.field(default_factory=dict)
  _noticed_secs: dict[base.NodeId, float] = dataclasses.field(default_factory=dict)
  _settled: tuple[base.ViewId, layout_lib.Layout] | None = None

  @property
  def is_writer(self) -> bool:
    """Whether this member writes journal and summary; False without a layout."""
    return bool(self.layout.nodes) and cohort_lib.acts(self.cohort, self.layout)

  @property
  def num_updates(self) -> int:
    """Number of updates of the parameters of local nodes; blocks.

    Skipped steps do not count. An optimizer without a schedule of the learning
    rate may not count updates; then it is the number of steps.
    """
    is_count = lambda slot: isinstance(slot, optax.ScaleByScheduleState)
    for node in self.engine.nodes.values():
      for state in node.state.values():
        for slot in jax.tree.leaves(state.slots, is_leaf=is_count):
          if is_count(slot):
            return int(slot.count)
    return self.steps

  def find_risk(self) -> parts.Risk | None:
    """Returns what is known of state whose only copies are on nodes that will be preempted.

    None if there are others, or that state was saved.
    """
    view, now_secs = self.cohort.newest, time.perf_counter()
    self._noticed_secs |= {
        node: self.cohort.arrived_secs(view.number)
        for node in view.leaving
        if node not in self._noticed_secs
    }
    if not view.leaving or view.number <= self.saved_in:
      return None
    held = [h for h in self.layout.copies if h[0] in view.numbers]
    if not (ending := survival.find_ending(held, view.leaving)):
      return None
    holders = sorted({node for node, segment in held if segment in ending})
    ends_secs = self.cluster.notice_secs + min(self._noticed_secs[n] for n in holders)
    after = self.plan(view, view.numbers).layout
    later = [copy for copy in after.copies if copy[0] in view.numbers]
    owners = self._owners()
    own = parts.deal(owners, self._leaving(view.leaving)).get(self.cohort.number, ())
    sizes = {s: self.writer.measure(self.engine.specs[s].state) for s in {*ending, *own}}
    return parts.Risk(
        view=view.number,
        leaving=view.leaving,
        holders=tuple(holders),
        num_bytes=sum(sizes[segment] for segment in ending),
        part_bytes=sum(sizes[segment] for segment in own) + self.writer.bytes_in_flight,
        rate=self.writer.rate,
        left_secs=max(0.0, ends_secs - now_secs),
        # Whether nodes that stay have a copy of each segment in the next layout.
        has_takers=bool(after.pipelines) and not survival.find_ending(later, view.leaving),
    )

  def hear_saves(self, said: Mapping[base.NodeId, parts.PartsReport]) -> None:
    """Handles the reports of all members after a commit; may start a save."""
    host_of, me = self.cohort.host_of, self.cohort.number
    owners = [n for n in self.layout.nodes if host_of(n) == me]
    if all(n in self.engine.nodes for n in owners):  # Each saves its stages.
      self.writer.hear(self.steps, said, **self._whose_state())

  def save_last(self, leaving: Collection[base.NodeId] = (), *, name: str = "save") -> None:
    """Saves the state; blocks, see `checkpoint.writer.Writer.save_last`.

    `name` tells this save from others of the same step and view.
    """
    self.writer.save_last(
        self.steps,
        lambda key, report: self.cohort.gather(f"{name} {key}", report),
        waiting=self.cohort.check,
        num_skipped=self.num_skipped,
        leaving=self._leaving(leaving),
        **self._whose_state(),
    )

  def _owners(self) -> list[list[base.NodeId]]:
    """Returns the member that hosts each stage, by pipeline."""
    return [[*map(self.cohort.host_of, row)] for row in self.engine.owners]

  def _leaving(self, leaving: Collection[base.NodeId]) -> set[base.NodeId]:
    """Returns the members all of whose nodes with a stage are leaving."""
    host_of, stay = self.cohort.host_of, self.layout.nodes - {*leaving}
    return {*map(host_of, leaving)} - {*map(host_of, stay)}

  def _whose_state(self) -> dict[str, Any]:
    """Returns arguments of the writer: members by stage, and local state."""
    nodes = self.engine.nodes
    states = {
        stage: nodes[node].layers_of(stage)
        for owners in self.engine.owners
        for stage, node in base.by_stage(owners)
        if node in nodes
    }
    return {"view": self.cohort.view.number, "owners": self._owners(), "states": states}

  @property
  def full_layout(self) -> layout_lib.Layout:
    """The layout, with the live nodes without a role as its spares."""
    spares = self.cohort.view.numbers - self.layout.nodes
    return dataclasses.replace(self.layout, spares=tuple(sorted(spares)))

  def begin(self, layout: layout_lib.Layout) -> None:
    """Starts a run, or resumes from its newest checkpoint that can be read.

    Raises `base.CheckpointError` if the checkpoint is of another run.
    """
    saved = max(self.writer.steps(), default=base.StepId(0))
    alone = lambda key, mine: {key: mine}
    self.steps, self._fetched = self._restore_newest(saved, layout, alone)
    self.version, self.num_skipped = 0, self.writer.num_skipped
    self.set_layout(layout)
    self.install()

  def status(
      self, holdings: Mapping[base.NodeId, holdings_lib.Holdings], *, since_secs: float
  ) -> agreement_lib.Status:
    """Returns the report on local nodes.

    Args:
      holdings: Data of the current step that each local node holds.
      since_secs: Start of the nodes of this member, on `time.perf_counter`.
    """
    alive = self.cohort.hosted & self.cohort.view.numbers
    return agreement_lib.Status(
        {node: holdings.get(node, holdings_lib.NOTHING) for node in sorted(alive)},
        steps=self.steps,
        version=self.version,
        rollbacks=self.rollbacks,
        layout=self.layout,
        saved=self.writer.steps(),
        damaged=self.damaged,
        boot_secs=time.perf_counter() - since_secs if self.steps < 0 else 0.0,
        named=self.named,
        num_skipped=self.num_skipped,
    )

  def set_layout(self, layout: layout_lib.Layout) -> None:
    """Adopts a layout; local nodes must hold the state of their roles."""
    self.layout = layout
    self.engine.set_pipelines(layout.roles, layout.lines_of_ways)
    if layout.roles and self.is_writer:
      members = sorted(self.cohort.view.numbers)
      facts = {**json_lib.to_plain(layout), "members": members}
      self.cohort.say(layout=facts)

  def catch_up(self, agreement: agreement_lib.Agreement, *, commit: Callable[[], None]) -> None:
    """Catches up with the members that are ahead.

    `commit` commits the current step.
    """
    # Others may have changed the layout again since the state was moved.
    if self.version < self.fetched_for <= agreement.known_version:
      self.install()
      if agreement.rollbacks > self.rollbacks:
        self.steps = agreement.steps
    elif agreement.known_version < self.fetched_for:
      self._fetched, self.fetched_for = {}, -1  # A later change will have that version.
    if -1 < self.steps < agreement.steps:
      commit()
    self.steps = agreement.steps
    self.version = agreement.version
    self.rollbacks = agreement.rollbacks
    self.named = agreement.named
    self.num_skipped = agreement.num_skipped
    self.set_layout(agreement.layout)

  def wait_for_nodes(
      self, agreement: agreement_lib.Agreement, *, explain: Callable[..., None]
  ) -> None:
    """Waits until all members have adopted a view with more nodes; blocks.

    Joining nodes are told that the run restarts from a checkpoint, since the
    member that announced the layout to them may be dead.

    Raises:
      base.EndedError: Restarts from a checkpoint are off, or the run was asked to end.
      base.InfeasibleError: No other node can join.
      base.ViewChangedError: A member was lost.
    """
    cohort, change = self.cohort, agreement.change
    if change.rung == "stop":
      stages = sorted({place.stage for place in agreement.victims})
      what = f"{'stage' if len(stages) == 1 else 'stages'} {', '.join(map(str, stages))}"
      why = f"Lost all copies of {what}; no live node of the pipeline has one."
      failures.end_run(cohort, why, None)  # Else agents would begin another life.
    acts = cohort_lib.acts(cohort, layout_lib.Layout())
    explain(f"waiting: {change.reason}", acts=acts)
    if acts:
      cohort.say(layout={"restart": True})
    cohort.wait_members(len(cohort.view.members) + 1, why=change.reason)
    seen = cohort.gather("waiting", cohort.newest.number)
    cohort.adopt(min(seen.values()))
    if cohort.view.stops:  # There is nothing to save: what is left of the state is not whole.
      why = (
          f"Ended while waiting for nodes: {change.reason} With enough of them the run goes on "
          "from its newest checkpoint."
      )
      failures.end_run(cohort, why, None)

  def plan(self, view: views.View, nodes: Collection[base.NodeId]) -> assignment.Decision:
    """Returns the change between two steps if `nodes` were the members of a view."""
    zones = cohort_lib.zones_of(view)
    rules = self.rules.among(zones)
    return rules.improve(self.layout, nodes, zones=zones, leaving=view.leaving)

  def find_change(self) -> assignment.Decision | None:
    """Returns the change that is due between two steps; None if there is none."""
    view = self.cohort.view
    if self._settled == (view.number, self.layout):
      return None
    change = self.plan(view, view.numbers)
    if change.layout != self.layout:
      return change
    self._settled = (view.number, self.layout)
    return None

  def carry_out(
      self, change: assignment.Decision, *, restored: base.StepId = base.StepId(0)  # noqa: B008
  ) -> None:
    """Changes the layout on all members, in two phases; blocks.

    A change that rolls back restores the checkpoint of step `restored`, or an
    older one if that is damaged.

    Raises:
      base.ViewChangedError, OSError: A member was lost.
    """
    version = self.version + 1
    if change.rolls_back:
      restored, self._fetched = self._restore_newest(restored, change.layout, self.cohort.gather)
    else:
      self._fetched = self.fetch(change.copies, version=version)
    self.fetched_for = version
    self.cohort.gather(f"moved {version}", None)
    self.install()
    self.version = version
    if change.rolls_back:
      self.steps, self.rollbacks = restored, self.rollbacks + 1
      self.num_skipped = self.writer.num_skipped
    self.set_layout(change.layout)

  def fetch(self, copies: Sequence[failover.StageCopy], *, version: int) -> StageStates:
    """Sends state of local nodes for layout `version`, and returns what they get.

    Blocks until it has arrived. Raises `base.AttemptOverError` or
    `base.PeerRemovedError` if a member was lost.
    """
    nodes, exchange, hosted = self.engine.nodes, self.engine.exchange, self.cohort.hosted
    found: StageStates = {}
    for copy in sorted(copies, key=lambda copy: copy.destination in hosted):  # Sends first.
      source, name = nodes.get(copy.source), f"state {version} {copy.stage}"
      state = source.layers_of(copy.stage) if source else self.engine.specs[copy.stage].state
      leaves, tree = jax.tree.flatten(state)
      if copy.destination in hosted:
        if source is None:
          assert exchange is not None, "All nodes are in this process."
          leaves = [exchange.receive(copy.source, name)[0] for _ in leaves]
        found[copy.destination, copy.stage] = jax.tree.unflatten(tree, leaves)
      elif source is not None:
        assert exchange is not None, "All nodes are in this process."
        for leaf in leaves:
          exchange.send(copy.destination, name, [leaf])
    return found

  def install(self) -> None:
    """Installs the fetched state; all members must have fetched theirs."""
    for (node, stage), state in self._fetched.items():
      self.engine.load_programs(node, stage)
      self.engine.nodes[node].put_state(state)
    self._fetched = {}

  def compare_copies(
      self, when: str, during: Callable[[str], contextlib.AbstractContextManager[None]]
  ) -> None:
    """Compares all copies of each layer: owners and replicas, in all pipelines.

    After a change of the layout, and at the end; else votes carry fingerprints,
    so that the comparison costs no message (`step.StepRunner`). Blocks until
    all members call it, each of which names the copies that differ.

    Args:
      when: Tells two comparisons after one step apart.
      during: Charges the time of its context to a kind.

    Raises `base.ReplicaMismatchError`, or as `Cohort.gather`.
    """
    with during("redundant"):
      prints = replicas.take_prints(self.engine, self.steps)
    said = self.cohort.gather(f"replicas {when} {self.version} {self.steps}", prints)
    replicas.compare(said.values())

  def _restore_newest(
      self,
      steps: base.StepId,
      layout: layout_lib.Layout,
      gather: Callable[[str, Restored], Mapping[Any, Restored]],
  ) -> tuple[base.StepId, StageStates]:
    """Returns the newest step up to `steps` that all can read, and its state.

    Blocks until all members call it, which `gather` their reports. Each reads
    only the state of its nodes.
    """
    while True:
      states: StageStates = {}
      is_damaged = False
      try:
        states = self._restore(steps, layout)
      except base.DamagedCheckpointError:  # Not used again, with a warning.
        if not steps:
          raise
        is_damaged = True
      mine = Restored(is_damaged, self.writer.steps())
      said = gather(f"restored {self.version + 1} {steps}", mine).values()
      if not any(restored.is_damaged for restored in said):
        return steps, states
      self.damaged += (steps,)
      steps = agreement_lib.newest_common([[s for s in r.saved if s < steps] for r in said])

  def _restore(self, steps: base.StepId, layout: layout_lib.Layout) -> StageStates:
    """Returns the state of local nodes in a layout, by node and stage."""
    needed = set()
    for roles in layout.roles:
      held = [*base.by_stage(roles.owners), *roles.shadows.items()]
      needed |= {(n, s) for s, n in held if n in self.cohort.hosted}
    names = {stage: self.engine.specs[stage].names for stage in sorted({s for _, s in needed})}
    layers = self.writer.restore(steps, [*itertools.chain(*names.values())])
    states = {stage: {name: layers[name] for name in own} for stage, own in names.items()}
    return {(node, stage): states[stage] for node, stage in sorted(needed)}
