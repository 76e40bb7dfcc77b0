"""Runs the passes of a step as programs in lockstep, one per pipeline.

It complements the engine of rows, whose nodes hold the state, receive the sums,
and run all phases after the passes. So a step may be cut at any segment, and
continue with other owners.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import functools
from typing import Any, cast

from absl import logging
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib, node as node_lib
from bamboo_jax.runtime.spmd import (
    layout as layout_lib,
    pipeline_run as run_lib,
    processes as processes_lib,
    program as program_lib,
    ticks as ticks_lib,
    weights as weights_lib,
)
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.schedule import holdings as holdings_lib, instruction as instruction_lib

Owners = Sequence[base.NodeId]
Order = Sequence[tuple[base.NodeId, instruction_lib.Instruction]]
Segment = Sequence[tuple[ticks_lib.Tick, ...]]


class SpmdEngine:
  """Programs for pipelines whose nodes own neighbouring stages.

  Attributes:
    runs: The progress of pipelines with local nodes in the current step, by
      share of the batch. A pipeline computes one share after the other.
    running: The runs whose segment has been started.
  """

  def __init__(
      self,
      rows: engine_lib.Engine,
      whole: spec_lib.StageSpec,
      table: ticks_lib.TickTable,
      *,
      keeps: bool,
      segment_ticks: int | None = None,
      processes: processes_lib.ProcessRing | None = None,
  ) -> None:
    """Compiles nothing yet.

    Args:
      rows: Its nodes hold the state; each owns a stage made of whole blocks.
      whole: The whole model as one stage.
      table: The ticks of every pipeline while all nodes live.
      keeps: Whether nodes hold replicas, so that a death can be survived.
      segment_ticks: Ticks of a segment; None for the number of stages, or for
        all ticks if no death can be survived.
      processes: Runs the passes, if each node is a process; else None.

    Raises:
      ValueError: The stages are not made of equal blocks (names the layer), or
        there are fewer devices than nodes.
    """
    self._rows, self._whole, self._table = rows, whole, table
    bounds = [spec.first for spec in rows.specs] + [rows.specs[-1].last]
    self.layout = layout_lib.make_layout(whole, bounds)
    self._processes, self._devices = processes, rows.devices
    if processes is None:
      _check(rows.owners, self._devices)
    self._params = programs_lib.copies_of(whole)
    self._keeps = keeps
    self._sizes, self._sizes_of_rest = program_lib.find_sizes(
        table, num_stages=self.layout.num_stages, keeps=keeps, segment_ticks=segment_ticks
    )
    self.runs: dict[base.ShareId, run_lib.PipelineRun] = {}
    self.running: list[run_lib.PipelineRun] = []

  @property
  def uses_processes(self) -> bool:
    """Whether each node is a process."""
    return self._processes is not None

  def can_run(self, lines: engine_lib.Lines = ()) -> bool:
    """Returns whether programs can run the given lines, or the current ones."""
    rows = self._rows
    owners = [row for row, _ in lines or rows.lines]
    nodes = [node for row in owners for node in set(row)]
    if not all(map(ticks_lib.is_ring, owners)) or len({*nodes}) < len(nodes):
      return False
    devices = {self._devices[node] for node in nodes if node in self._devices}
    return self._processes is not None or len(devices) == len(nodes)

  def jobs(self, lines: engine_lib.Lines) -> list[Callable[[], Any]]:
    """Returns the jobs that compile segments for lines with local nodes."""
    if not self.can_run(lines):
      return []
    rows = sorted({tuple(row) for row, _ in lines})
    own = [row for row in rows if not self._devices.keys().isdisjoint(row)]
    found: list[Callable[[], Any]] = [functools.partial(self._compile, row) for row in own]
    if self.uses_processes and self._keeps and len(rows) > 1:
      # The death of a node ends the runs of other pipelines, too.
      found += [functools.partial(self._compile, row, is_rest=True) for row in own]
    return found

  def _compile(self, owners: Owners, *, is_rest: bool = False) -> None:
    program = self._find(owners, is_rest=is_rest)
    if self._processes is None:
      _ = program.segment, program.start
    else:
      size = len(set(owners))
      self._processes.compile_ahead(processes_lib.RingProgram(self.layout, program.sizes, size))
    for node, stages in self._stages(program, owners).items():
      device = self._devices.get(node)
      if device is not None:
        self._packing.find_pack(program, device, stages, stages)
        for hold, stage in enumerate(stages[: program.sizes.num_owned]):
          self._packing.find_unpack(program, device, stage, hold)

  def num_bytes(self) -> dict[str, int]:
    """Returns the bytes of a node's arrays beside its state, by memory."""
    program = self._find(self._rows.owners[0])
    # Copies of a segment's carry; assumes one process per node.
    copies = 2 if self._keeps else 1
    carry, sizes = program.carry, program.sizes
    num_segments = -(-len(self._table.ticks) // sizes.num_ticks)
    slots = sizes.buffers["residuals"]
    residuals = spec_lib.nbytes(carry.kept) // slots * sizes.num_offloads
    sent = 2 * spec_lib.nbytes(program.activation) * sizes.num_ticks * self._keeps
    return {
        "device": spec_lib.nbytes((program.weights, program.batch))
        + copies * spec_lib.nbytes(carry),
        "host": num_segments * (residuals + sent),
    }

  def begin(self, step: base.StepId, feed: node_lib.FeedFn) -> None:
    """Drops the runs of the previous step."""
    self._step, self._feed = step, feed
    for run in self.runs.values():
      run.segments.release()
    self.forget()

  def forget(self) -> None:
    """Drops the runs of this step, but not what is in the stores of nodes."""
    self.runs = {}
    if self._processes is not None:
      self._processes.forget()

  def plan(self, order: Order, *, line: int) -> None:
    """Plans the remaining passes of a line, from the schedule of its nodes.

    What nodes have dumped is used, and moved to the nodes that need it: blocks
    for values of other processes, and raises as the transport.
    """
    owners, shares = self._rows.lines[line]
    # Shares may have been dropped.
    live = {share for own in self._rows.shares for share in own}
    for share in self.runs.keys() - live:
      del self.runs[share]
    for share in shares:
      former = self.runs.get(share)
      if former is not None and former.owners == owners:
        continue
      self.runs.pop(share, None)
      if not self._rows.nodes.keys().isdisjoint(owners):
        if run := self._make_run(order, share, owners):
          self.runs[share] = run

  def _make_run(
      self, order: Order, share: base.ShareId, owners: Owners
  ) -> run_lib.PipelineRun | None:
    """Returns the run of the passes of a share; None if there are none."""
    numbers, table, program = self._numbers(share), self._table, self._find(owners)
    nodes = list(dict.fromkeys(owners))
    owned = (instruction_lib.Op.FORWARD, instruction_lib.Op.BACKWARD)
    count = sum(i.op in owned and i.microbatch in numbers for _, i in order)
    if count < table.num_passes or len(nodes) < len(owners):
      # The table is for whole steps, with one stage per node.
      table = ticks_lib.lower(
          order,
          owners=owners,
          microbatches=numbers,
          in_flight=self._sizes_of_rest.num_slots["residuals"],
      )
      program = self._find(owners, table)
    if not count:
      return None
    if count < self._table.num_passes:
      logging.info("%d of %d passes of share %d are left", count, self._table.num_passes, share)
    self._move(table.moves)
    local = {n: node for n, node in enumerate(nodes) if node in self._rows.nodes}
    begin = None
    if any(table.start[n] != holdings_lib.NOTHING for n in local):
      begin = {
          n: run_lib.load(
              *(program, table, n, self._rows.nodes[node].store), share=share, numbers=numbers
          )
          for n, node in local.items()
      }
    rows = run_lib.find_rows(table, program.sizes)
    weights, batch = self._inputs(program, owners, numbers)
    facts = (np.array(numbers, np.uint32), np.uint32(self._step))
    segments: run_lib.Segments
    if self._processes is None:
      inputs = (program.put(weights), program.put(dict.fromkeys(weights, batch)), *facts)
      segments = run_lib.LocalSegments(program, inputs, {n: rows[n] for n in local}, begin)
    else:
      (n,) = local
      work = processes_lib.ShareWork(self.layout, program.sizes, share, *facts)
      arrays = (weights[n], batch, rows[n], begin and begin[n])
      segments = processes_lib.ChildSegments(self._processes, work, arrays)
    return run_lib.PipelineRun(program, table, segments, tuple(owners), numbers)

  def _move(self, moves: Order) -> None:
    """Moves arrays of the step between stores."""
    for number, i in moves:
      if node := self._rows.nodes.get(number):
        key, channel = (i.stage, i.microbatch), node.find_channel(i)
        arrays = node.store.activations if i.transfer(number).kind == "A" else node.store.grads
        if i.is_send:
          node.links.send(channel, arrays[key])
        else:
          arrays[key] = node.links.receive(channel, node.stages[i.stage].outputs)

  @property
  def is_done(self) -> bool:
    """Whether all passes of all pipelines are finished."""
    return all(run.is_done for run in self.runs.values())

  def start(self) -> None:
    """Starts a segment of every pipeline."""
    left = {}
    for _, run in sorted(self.runs.items(), reverse=True):
      if not run.is_done:
        left[run.owners] = run  # The lowest share stays.
    self.running = [*left.values()]
    self._errors: list[Exception] = []
    self._try(lambda r: r.segments.start())

  def finish(self, lost: Collection[base.NodeId] = ()) -> None:
    """Waits for all that was started; then raises the first error.

    Results of pipelines with nodes in `lost` are discarded.
    """
    self._try(lambda r: r.segments.finish(is_lost=not set(r.nodes).isdisjoint(lost)))
    errors, self._errors, self.running = self._errors, [], []
    if errors:
      raise errors[0]

  def _try(self, act: Callable[[run_lib.PipelineRun], None]) -> None:
    for run in list(self.running):  # A copy, as `remove` changes it.
      try:
        act(run)
      except Exception as error:  # JAX raises various types.
        self._errors.append(error)
        self.running.remove(run)

  def run_in_children(
      self, strike: Callable[[Owners, Segment], None], note_progress: Callable[[], None]
  ) -> None:
    """Runs all passes in the children of workers, one pipeline after the other.

    Calls `strike` with the nodes of a ring and the segment that it has started;
    see `ProcessRing.run` for `note_progress`.
    """
    assert self._processes is not None, "Each node is a process."
    rings: dict[Owners, list[run_lib.PipelineRun]] = {}
    for _, run in sorted(self.runs.items()):  # The same order at all nodes.
      rings.setdefault(run.nodes, []).append(run)
    for nodes, runs in rings.items():
      run_all = functools.partial(_run_all, runs, functools.partial(strike, nodes))
      load = cast(processes_lib.ChildSegments, runs[0].segments).load
      self._processes.run(nodes, load, run_all, note_progress=note_progress)

  def put_sums(self) -> None:
    """Gives local nodes the gradient sums of their stages."""
    for share, run in self.runs.items():
      for stage, number in base.by_stage(run.owners):
        node, n = self._rows.nodes.get(number), run.nodes.index(number)
        if node is None or (sums := run.segments.sums(n)) is None:
          continue
        hold = run.table.stages_of(n).index(stage)
        unpack = self._packing.find_unpack(run.program, node.device, stage, hold)
        totals = unpack(sums)
        node.store.accumulators |= {(unit, share): total for unit, total in totals.items()}

  def dump(self) -> None:
    """Puts all arrays of the step into the stores of local nodes, if a death can be survived."""
    if not self._keeps:
      return
    for run in self.runs.values():
      for number in self._rows.nodes.keys() & run.owners:
        run.dump(number, self._rows.nodes[number].store)
    self.put_sums()

  @property
  def _packing(self) -> weights_lib.Packing:
    key = ("packing", self.layout)
    return self._rows.programs.others.get(key, weights_lib.Packing)

  def _find(
      self, owners: Owners, table: ticks_lib.TickTable | None = None, *, is_rest: bool = False
  ) -> program_lib.SegmentProgram:
    """Returns the program of owners, whose sizes fit a table; compiles nothing yet."""
    nodes, sizes = tuple(dict.fromkeys(owners)), self._sizes
    num_owned = max(map(owners.count, nodes))
    if table is not None or is_rest or num_owned > 1:
      # Large enough also for nodes that continue an interrupted step.
      num_owned = max(2, num_owned)
      sizes = dataclasses.replace(self._sizes_of_rest, num_owned=num_owned, num_held=num_owned)
    if table is not None:  # If it is larger, it is compiled now, in a pause.
      sizes = sizes.widen(table)
    # A worker needs only the shapes of the program that its child runs.
    devices = [self._devices[node] for node in nodes if node in self._devices]
    return self._rows.programs.others.get(
        ("segment", self.layout, str(sizes), *devices),
        lambda: program_lib.SegmentProgram(
            *(self._whole, self.layout, sizes), devices=devices, params=self._params
        ),
    )

  def _stages(
      self, program: program_lib.SegmentProgram, owners: Owners
  ) -> dict[base.NodeId, tuple[base.StageId, ...]]:
    """Returns the stages that each node holds, in order along the ring."""
    ring = list(dict.fromkeys(owners))
    places = [ring.index(node) for node in owners]
    return {
        node: ticks_lib.stages_of(places, n)[: program.sizes.num_held]
        for n, node in enumerate(ring)
    }

  def _numbers(self, share: base.ShareId) -> range:
    count = self._table.num_microbatches
    return range(share * count, (share + 1) * count)

  def _inputs(
      self, program: program_lib.SegmentProgram, owners: Owners, numbers: Sequence[int]
  ) -> tuple[dict[int, base.PyTree], base.PyTree]:
    """Returns the weights of local nodes by place in the ring, and the microbatches."""
    rows, keys = self._rows, self._whole.batch_keys
    data = [self._feed(m, keys) for m in numbers]
    batch = {key: np.stack([one[key] for one in data])[None] for key in keys}
    weights = {}
    for n, (node, stages) in enumerate(self._stages(program, owners).items()):
      if node in rows.nodes:
        device, held = self._devices[node], {}
        for stage in stages:
          if layers := rows.nodes[node].layers_of(stage):
            held[stage] = (
                {name: layer.params for name, layer in layers.items()},
                {name: layer.stats for name, layer in layers.items()},
            )
        known = tuple(held)
        pack = self._packing.find_pack(program, device, stages, known)
        weights[n] = pack(held)
    return weights, batch


def _run_all(runs: Sequence[run_lib.PipelineRun], strike: Callable[[Segment], None]) -> None:
  for run in runs:
    child = cast(processes_lib.ChildSegments, run.segments)
    child.load()
    while not run.is_done:
      child.start()
      strike(run.segment)
      child.finish()
    child.take_sums()


def _check(owners: Sequence[Owners], devices: Mapping[base.NodeId, jax.Device]) -> None:
  """Raises `ValueError` unless programs can run these nodes."""
  # A joined node knows no device of first owners that have died.
  nodes = {node for row in owners for node in row} & devices.keys()
  devices = {devices[node] for node in nodes}
  if len(devices) != len(nodes):
    raise ValueError(
        "One program for all stages needs a device of its own for each of "
        f"{len(nodes)} nodes, got {len(devices)}; {layout_lib.ADVICE}."
    )
