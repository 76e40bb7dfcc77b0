"""An executor whose passes are programs, one per pipeline.

It complements the engine of rows, whose nodes hold the state, receive the sums,
and run all phases after the passes. So a step may be cut at any segment, and
continue with other owners.

A death costs the segment in which it happened: the survivors hold the results
of earlier segments, so the rest of the step is planned as for rows and runs as
programs on the survivors. If programs cannot run the new roles, because nodes
would share a device, rows repeat the step from its start.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import time
from typing import Any

from absl import logging
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.runtime import (
    engine as engine_lib,
    executor as executor_lib,
    node as node_lib,
    places,
)
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.runtime.spmd import (
    layout as layout_lib,
    passes as passes_lib,
    plan as plan_lib,
    processes as processes_lib,
    program as program_lib,
    ticks as ticks_lib,
)
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import (
    failover,
    holdings as holdings_lib,
    instruction as instruction_lib,
    redundancy,
    timeline as timeline_lib,
)

Op = instruction_lib.Op
Owners = tuple[base.NodeId, ...]  # By stage.


@dataclasses.dataclass
class PipelineRun:
  """The progress of a pipeline in a step, of one share of the batch.

  Attributes:
    program: Its shapes.
    numbers: Microbatches of the share, in the global batch.
  """

  program: program_lib.SegmentProgram
  table: ticks_lib.TickTable
  segments: program_lib.LocalSegments | processes_lib.ChildSegments
  owners: tuple[base.NodeId, ...]
  numbers: Sequence[int]

  @property
  def nodes(self) -> tuple[base.NodeId, ...]:
    """The nodes along the ring."""
    return tuple(dict.fromkeys(self.owners))

  @property
  def segment(self) -> Sequence[tuple[ticks_lib.Tick, ...]]:
    """The ticks of the next segment; none if all are finished."""
    size = self.program.sizes.num_ticks
    return self.table.ticks[self.segments.num_segments * size :][:size]

  def dump(self, node: node_lib.Node) -> None:
    """Puts all arrays of a local node but its sums into its store, on the host."""
    n, sizes, table = self.nodes.index(node.node), self.program.sizes, self.table
    left = self.segments.read(n)
    store, where = node.store, places.whole(node.device).with_memory_kind("pinned_host")
    arrays, number = program_lib.arrays_of(store), lambda key: (key[0], self.numbers[key[1]])
    if left is not None:
      num_ticks = len(left.host) * sizes.num_ticks
      for (kind, key), segment, slot in table.find_contents(n, num_ticks, sizes):
        buffer = getattr(left.carry if segment is None else left.host[segment], kind)
        value = jax.tree.map(lambda a, slot=slot: np.asarray(a)[0, slot], buffer)
        arrays[kind][number(key)] = jax.device_put(value, where)
    ticks = table.ticks[: self.segments.num_summed * sizes.num_ticks]
    done = (i for tick in ticks for i in tick[n] if i.op is Op.BACKWARD)
    for key in (number(i.item) for i in done):
      store.accumulated.add(key)
      store.saved.pop(key, None)


class Programs:
  """See `executor.Executor`.

  Attributes:
    filler: The filler of rows; programs fill no waits.
    in_segments: See `executor.Executor`.
    is_by_rows: Whether rows run the passes of this step instead.
    runs: The passes of pipelines with local nodes in the current step, by share of the
      batch. A pipeline computes one share after the other.
  """

  def __init__(
      self,
      plan_of_step: plan_lib.ProgramPlan,
      whole: spec_lib.StageSpec,
      engine: engine_lib.Engine,
      members: executor_lib.Members,
      processes: processes_lib.ProcessRing | None = None,
  ) -> None:
    """Compiles nothing yet.

    Args:
      plan_of_step: Its ticks are those of every pipeline while all nodes live.
      whole: The whole model as one stage.
      engine: Its nodes hold the state; each owns a stage made of whole blocks.
      processes: Runs the passes, if each node is a process; else None.

    Raises `ValueError` if there are fewer devices than nodes.
    """
    # A joined node knows no device of first owners that have died.
    devices = [engine.devices[n] for row in engine.owners for n in row if n in engine.devices]
    if processes is None and len({*devices}) < len(devices):
      raise ValueError(
          "One program for all stages needs a device of its own for each of "
          f"{len(devices)} nodes, got {len({*devices})}; {layout_lib.ADVICE}."
      )
    self._plan, self._engine = plan_of_step, engine
    self._members, self._processes = members, processes
    layout = plan_of_step.layout
    make = functools.partial(passes_lib.StagePasses, whole, layout)
    self._passes = engine.programs.find(("passes", layout), make)
    self._rows = executor_lib.Executor(engine, members)
    self.filler, self.is_by_rows = self._rows.filler, False
    self.in_segments: Sequence[recorder_lib.MeasuredInstruction] = ()
    self.runs: dict[base.ShareId, PipelineRun] = {}

  def jobs(self, lines: engine_lib.Lines) -> list[Callable[[], Any]]:
    # After the death of a node other pipelines continue from what they have left, too.
    rests = [False, True] if self._plan.keeps and len(lines) > 1 else [False]
    found = {(tuple(row), is_rest): None for is_rest in rests for row, _ in lines}
    if lines is self._engine.lines:
      for roles in self._engine.roles:
        for victim in roles.nodes:
          after, gone = failover.fail_over(roles, [victim])
          if not gone:
            found[after.owners, False] = None
    return [
        functools.partial(self._compile, row, is_rest=is_rest)
        for row, is_rest in found
        if self._can_run([row]) and not self._engine.devices.keys().isdisjoint(row)
    ]

  def begin(self, step: base.StepId, feed: node_lib.FeedFn) -> None:
    self._step, self._feed, self.is_by_rows = step, feed, False
    self.in_segments, self._ran_secs = (), 0.0
    self._num_starts = self._processes.num_starts if self._processes else 0
    for run in self.runs.values():
      run.segments.release()
    self._forget()

  def plan(
      self,
      timelines: Sequence[timeline_lib.Timeline],
      filling: redundancy.StepFilling | None = None,
  ) -> None:
    """See `executor.Executor`.

    What nodes have dumped is used, and moved to the nodes that need it: blocks
    for values of other processes, and raises as the transport.
    """
    self._rows.plan(timelines, filling)
    self._forget()  # What they have done is in the stores.
    if self.is_by_rows or not self.can_continue():
      self._give_up_programs()
      return
    for (owners, shares), timeline in zip(self._engine.lines, timelines, strict=True):
      if not self._engine.nodes.keys().isdisjoint(owners):
        for share in shares:
          self._plan_share(share, tuple(owners), timeline)

  def compute(self, strike: Callable[[base.NodeId], None], recorder: recorder_lib.Recorder) -> None:
    """See `executor.Executor`; the passes of programs cannot be measured."""
    if self.is_by_rows:
      self._rows.compute(strike, recorder)
      return
    runs = [run for _, run in sorted(self.runs.items())]  # The same order at all nodes.
    run = functools.partial(self._run, runs, strike)
    if self._processes is None:
      run()
    elif runs:
      (nodes,) = {run.nodes for run in runs}  # A process is in one pipeline.
      self._processes.run(nodes, run, note_progress=self._members.check)
    self.put_sums()

  def holdings(self, *, is_begun: bool) -> dict[base.NodeId, holdings_lib.Holdings]:
    if is_begun and self._plan.keeps:
      for run in self.runs.values():
        for number in self._engine.nodes.keys() & run.owners:
          run.dump(self._engine.nodes[number])
      self.put_sums()
    return self._rows.holdings(is_begun=is_begun)

  def can_continue(self) -> bool:
    return self.is_by_rows or self._can_run([row for row, _ in self._engine.lines])

  def planned_passes(self, secs: float) -> account_lib.NodeTime | None:
    """See `executor.Executor`; None if rows run the step.

    The time outside of segments is that of a restart if a process was started.
    """
    if self.is_by_rows:
      return None
    owners = {node for row, _ in self._engine.lines for node in row}
    part = len(owners & self._engine.nodes.keys()) / len(owners)
    passes = self._plan.passes(self._ran_secs) * part
    if self._processes is None or self._processes.num_starts == self._num_starts:
      return passes
    return passes + account_lib.NodeTime(restart=max(0.0, secs - self._ran_secs))

  def put_sums(self) -> None:
    """Gives local nodes the gradient sums of their stages."""
    for share, run in self.runs.items():
      for stage, number in base.by_stage(run.owners):
        node, n = self._engine.nodes.get(number), run.nodes.index(number)
        if node is not None and (sums := run.segments.sums(n)) is not None:
          hold = run.table.stages[n].index(stage)
          # Those of a child are in host memory, for which nothing is compiled.
          sums = jax.device_put(sums, self._engine.devices[number])
          totals = self._passes.unpack(stage, hold, sums)
          node.store.accumulators |= {(unit, share): total for unit, total in totals.items()}

  def _can_run(self, rows: Sequence[Sequence[base.NodeId]]) -> bool:
    """Returns whether programs can run pipelines of these owners."""
    nodes = [node for row in rows for node in set(row)]
    devices = [self._engine.devices[node] for node in nodes if node in self._engine.devices]
    is_shared = len({*nodes}) < len(nodes) or len({*devices}) < len(devices)
    return all(map(ticks_lib.is_ring, rows)) and not is_shared

  def _compile(self, owners: Owners, *, is_rest: bool) -> None:
    sizes, rest = self._plan.sizes
    most = max(map(owners.count, owners))
    if is_rest or most > 1:
      sizes = rest._replace(owned=max(rest.owned, most))
    program, engine = self._find(owners, sizes), self._engine
    if self._processes is None:
      _ = program.segment, program.start
    else:
      self._processes.compile_ahead(self._plan.layout, sizes, len(set(owners)))
    for node in engine.devices.keys() & owners:
      device, stages = engine.devices[node], ticks_lib.stages_of(owners, node)[: sizes.held]
      like = lambda tree, at=device: places.put_shapes(tree, places.of_any(at, tree))
      states = like(_find_states(engine.specs[stage].state for stage in stages))
      self._passes.pack.lower(stages, sizes.held, states).compile()
      sums = like(passes_lib.repeat(program.carry.sums, 1))
      for hold, stage in enumerate(stages[: sizes.owned]):
        self._passes.unpack.lower(stage, hold, sums).compile()

  def _find(self, owners: Owners, sizes: ticks_lib.Sizes) -> program_lib.SegmentProgram:
    """Returns the program of owners; compiles nothing yet."""
    # A worker needs only the shapes of the program that its child runs.
    nodes, known = dict.fromkeys(owners), self._engine.devices
    devices = [known[node] for node in nodes if node in known]
    return self._engine.programs.find(
        ("segment", self._plan.layout, str(sizes), *devices),
        lambda: program_lib.SegmentProgram(self._passes, sizes, devices),
    )

  def _plan_share(
      self, share: base.ShareId, owners: Owners, timeline: timeline_lib.Timeline
  ) -> None:
    """Plans the passes of a share that are left, if there are some."""
    table, engine, (sizes, rest) = self._plan.table, self._engine, self._plan.sizes
    first, nodes = share * table.num_microbatches, list(dict.fromkeys(owners))
    numbers = range(first, first + table.num_microbatches)
    passes = [
        s.instruction for s in timeline.slots if s.instruction.op in (Op.FORWARD, Op.BACKWARD)
    ]
    num_left, num_passes = sum(i.microbatch in numbers for i in passes), 2 * len(owners) * len(
        numbers
    )
    if not num_left:
      return
    if num_left < num_passes:
      logging.info("%d of %d passes of share %d are left", num_left, num_passes, share)
    if num_left < num_passes or len(nodes) < len(owners):
      # The table is for whole steps, with one stage per node.
      table = ticks_lib.lower(
          timeline.slots, owners=owners, microbatches=numbers, in_flight=rest.residuals
      )
      least = table.least_sizes(rest.num_ticks, keeps=rest.keeps)
      # If that is more than was expected, it is compiled now, in a pause.
      sizes = ticks_lib.Sizes._make(map(max, rest, least))
    program = self._find(owners, sizes)
    local = {n: engine.nodes[node] for n, node in enumerate(nodes) if node in engine.nodes}
    for node, i in table.moves:
      if node in engine.nodes:
        engine.nodes[node].run(i)
    begin = None
    needs = (life.made < 0 for n in local for life in table.lives[n].values())
    if num_left < num_passes or any(needs):
      load = functools.partial(program_lib.load, program, table, share=share, numbers=numbers)
      begin = {n: load(n, node.store) for n, node in local.items()}
    given = self._find_given(sizes, owners, numbers)
    rows = table.as_array(sizes)
    arrays = given, {n: rows[n] for n in local}, begin
    segments: program_lib.LocalSegments | processes_lib.ChildSegments
    if self._processes is None:
      segments = program_lib.LocalSegments(program, *arrays)
    else:
      work = (self._plan.layout, sizes, share, self._step)
      segments = processes_lib.ChildSegments(self._processes, work, arrays)
    self.runs[share] = PipelineRun(program, table, segments, owners, numbers)

  def _run(self, runs: Sequence[PipelineRun], strike: Callable[[base.NodeId], None]) -> None:
    """Runs all segments of pipelines side by side; the shares of one in turn."""
    nodes, members = self._engine.nodes, self._members
    while left := {run.nodes: run for run in reversed(runs) if run.segment}:
      members.check()
      start_secs = time.perf_counter()
      for run in left.values():
        run.segments.start()
      passes = [
          (node, i)
          for run in left.values()
          for tick in run.segment
          for node, own in zip(run.nodes, tick, strict=True)
          if node in nodes
          for i in own
      ]
      for node, _ in passes:
        strike(node)
      lost = nodes.keys() - members.hosted
      for run in left.values():
        run.segments.finish(is_lost=not lost.isdisjoint(run.nodes))
      span_secs = start_secs, time.perf_counter()
      self._ran_secs += span_secs[1] - start_secs
      measured = (recorder_lib.MeasuredInstruction(*one, *span_secs) for one in passes)
      self.in_segments = [*self.in_segments, *measured]

  def _find_given(
      self, sizes: ticks_lib.Sizes, owners: Owners, numbers: Sequence[int]
  ) -> dict[int, passes_lib.Given]:
    """Returns the arguments of the passes of local nodes, by place in the ring."""
    keys, found = self._passes.spec.batch_keys, {}
    data = [self._feed(m, keys) for m in numbers]
    batch = {key: np.stack([one[key] for one in data])[None] for key in keys}
    first, step = (np.array([count], np.uint32) for count in (numbers[0], self._step))
    for n, number in enumerate(dict.fromkeys(owners)):
      if node := self._engine.nodes.get(number):
        stages = ticks_lib.stages_of(owners, number)[: sizes.held]
        states = _find_states(map(node.layers_of, stages))
        weights = self._passes.pack(stages, sizes.held, states)
        found[n] = passes_lib.Given(weights, batch, first, step)
    return found

  def _forget(self) -> None:
    """Drops the runs of this step, but not what is in the stores of nodes."""
    self.runs = {}
    if self._processes is not None:
      self._processes.segments = []

  def _give_up_programs(self) -> None:
    """Makes rows repeat the step from its start, unless they run it already."""
    if not self.is_by_rows:
      logging.warning(
          "Rows run this step: programs cannot, because nodes would share a "
          "device or send to nodes other than their neighbours. The last bits "
          "of its results may differ from those of programs."
      )
      self.is_by_rows = True
      for node in self._engine.nodes.values():
        node.store.clear()


def _find_states(
    stages: Iterable[Mapping[str, spec_lib.LayerState]],
) -> dict[str, tuple[base.PyTree, base.PyTree]]:
  """Returns parameters and statistics of layers, which are given by stage."""
  return {name: (own.params, own.stats) for layers in stages for name, own in layers.items()}
