"""Runs the passes of a step as programs in lockstep, a pipeline each.

It stands beside the engine of rows, whose nodes hold the state, get the sums,
and run all phases after the passes. So a step may be cut at any segment, and go
on with other owners.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.spmd import layout as layout_lib
from bamboo_jax.runtime.spmd import program as program_lib
from bamboo_jax.runtime.spmd import run as run_lib
from bamboo_jax.runtime.spmd import weights as weights_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule.ticks import lowering
from bamboo_jax.schedule.ticks import table as table_lib

Owners = Sequence[int]


class SpmdEngine:
  """Programs for pipelines whose nodes own one or two stages.

  Attributes:
    runs: What each pipeline has done of the current step.
    num_fetched: Redundant backward passes from residuals in host memory.
  """

  def __init__(
      self,
      rows: engine_lib.Engine,
      whole: spec_lib.StageSpec,
      table: table_lib.TickTable,
      *,
      keeps: bool,
      segment_ticks: int | None = None,
  ) -> None:
    """Compiles nothing yet.

    Args:
      rows: Its nodes hold the state; each owns a stage made of whole blocks.
      whole: The whole model as one stage.
      table: What every pipeline runs while all nodes live.
      keeps: Whether nodes hold replicas, so that a death can be survived.
      segment_ticks: Ticks of a segment; None for as many as stages, or for all
        if no death can be survived.

    Raises:
      ValueError: The stages are not made of equal blocks, the message names the
        layer that differs; or there are fewer than two, or fewer devices than
        nodes.
    """
    self._rows, self._whole, self._table = rows, whole, table
    bounds = [spec.first for spec in rows.specs] + [rows.specs[-1].last]
    self.layout = layout_lib.make_layout(whole, bounds)
    _check(rows, self.layout)
    self._keeps = keeps
    num_stages = self.layout.num_stages
    ticks = segment_ticks or (num_stages if keeps else len(table.ticks))
    self._sizes = program_lib.Sizes(
        num_ticks=ticks,
        num_microbatches=table.num_microbatches,
        num_slots=table.num_slots,
        num_offloads=max(
            len(table.offloads(n, t, t + ticks))
            for t in range(0, len(table.ticks), ticks)
            for n in range(table.num_nodes)
        ),
        num_fetches=0,
        num_owned=1,
        num_held=2 if keeps else 1,
        keeps=keeps,
    )
    # The nodes of a pipeline that has lost some own two stages each.
    room = table.num_microbatches + num_stages
    self._most_residuals = 2 * num_stages + 1
    self._sizes_of_rest = dataclasses.replace(
        self._sizes,
        num_slots={
            "activations": room,
            "grads": room,
            "residuals": self._most_residuals + 1,
        },
        num_offloads=0,
        num_fetches=table.num_microbatches if self._sizes.num_offloads else 0,
        num_owned=2,
    )
    self._programs: dict[tuple, program_lib.SegmentProgram] = {}
    self._packing = weights_lib.Packing()
    self.runs: dict[int, run_lib.Run] = {}
    self.num_fetched = 0

  def can_run(self) -> bool:
    """Returns whether programs can run the current owners and shares."""
    rows = self._rows
    nodes = [node for row in rows.owners for node in set(row)]
    most = max(row.count(node) for row in rows.owners for node in row)
    return (
        all(len(shares) == 1 for shares in rows.shares)
        and most <= (2 if self._keeps else 1)
        and len({rows.devices[node] for node in nodes}) == len(nodes)
    )

  def compile(self) -> None:
    """Compiles the programs of all pipelines, and of each death of a node."""
    rows = self._rows
    after = compile_ahead.survivable_deaths(rows.owners, rows.shadows)
    for owners in [rows.owners, *after]:
      for row in {tuple(row) for row in owners if rows.nodes.keys() & row}:
        program, _ = self._find(row)
        program.compile()
        for node, stages in self._stages(program, row).items():
          if node in rows.nodes:
            self._packing.compile(program, rows.devices[node], stages)

  def num_bytes(self) -> dict[str, int]:
    """Returns what programs hold on a node beside its state, by memory."""
    program, _ = self._find(self._rows.owners[0])
    count = lambda tree: sum(
        a.size * a.dtype.itemsize for a in jax.tree.leaves(tree)
    )
    copies = 2 if self._keeps else 1  # Of what a segment carries.
    carry, sizes = program.carry, program.sizes
    num_segments = -(-len(self._table.ticks) // sizes.num_ticks)
    slots = max(1, sizes.num_slots["residuals"])
    residuals = count(carry.kept) // slots * sizes.num_offloads
    sent = 2 * count(program.activation) * sizes.num_ticks * self._keeps
    return {
        "device": count((program.weights, program.batch))
        + copies * count(carry),
        "host": num_segments * (residuals + sent),
    }

  def begin(self, step: int, feed: node_lib.FeedFn) -> None:
    """Forgets the step before."""
    self._step, self._feed = step, feed
    self.runs = {}

  def plan(
      self, rows: Mapping[int, instruction_lib.Row], *, pipeline: int
  ) -> None:
    """Plans what a pipeline owes: `rows` are of its nodes.

    What it has done already it keeps, without nodes that are lost.
    """
    owners, former = self._rows.owners[pipeline], self.runs.get(pipeline)
    if former is not None and former.owners == owners:
      return
    numbers, table = self._numbers(pipeline), self._table
    program, ring = self._find(owners)
    if former is not None or len(ring) < len(owners):
      table = lowering.lower(
          rows,
          owners=owners,
          microbatches=numbers,
          start=former.starts(owners) if former else None,
          most_residuals=self._most_residuals,
      )
      program, _ = self._find(owners, table)
    self.runs[pipeline] = run_lib.Run(
        program,
        table,
        self._inputs(program, owners, numbers),
        owners=owners,
        former=former,
    )
    self.num_fetched += self.runs[pipeline].num_fetched

  @property
  def is_done(self) -> bool:
    """Whether all passes of all pipelines are through."""
    return all(run.is_done for run in self.runs.values())

  def advance(self) -> None:
    """Runs a segment of every pipeline; raises the first error, after all."""
    running = [run for run in self.runs.values() if not run.is_done]
    errors = []
    for act in (run_lib.Run.start, run_lib.Run.finish):
      for run in list(running):
        try:
          act(run)
        except Exception as error:  # JAX raises various types.
          errors.append(error)
          running.remove(run)
    if errors:
      raise errors[0]

  def put_sums(self) -> None:
    """Gives local nodes the sums of their stages."""
    for pipeline, run in self.runs.items():
      (share,) = self._rows.shares[pipeline]
      for stage, number in enumerate(run.owners):
        if number in self._rows.nodes:
          node = self._rows.nodes[number]
          node.store.accumulators[stage, share] = self._packing.unpack(
              run.program,
              node.device,
              stage,
              run.hold_of(number, stage),
              run.sums(number),
          )

  def holdings(self) -> dict[int, holdings_lib.Holdings]:
    """Returns what local nodes hold of the step, for the scheduler."""
    found = {}
    for pipeline, run in self.runs.items() if self._keeps else ():
      numbers = self._numbers(pipeline)
      for number in self._rows.nodes.keys() & run.owners:
        held = run.held(number).holdings()
        found[number] = holdings_lib.Holdings(
            **{
                name: frozenset((stage, numbers[m]) for stage, m in keys)
                for name, keys in vars(held).items()
            }
        )
    return found

  def _find(
      self,
      owners: Owners,
      table: table_lib.TickTable | None = None,
  ) -> tuple[program_lib.SegmentProgram, list[int]]:
    """Returns the program for owners, and for a table, and their ring."""
    ring = list(dict.fromkeys(owners))
    is_whole = len(ring) == len(owners) and table is None
    program = self._programs.get((is_whole, *ring))
    if program is None or table and not program.sizes.fits(table):
      sizes = self._sizes if is_whole else self._sizes_of_rest
      if table and not sizes.fits(table):  # Compiled now, in a pause.
        room = {
            kind: max(count, sizes.num_slots[kind])
            for kind, count in table.num_slots.items()
        }
        sizes = dataclasses.replace(sizes, num_slots=room)
      program = program_lib.SegmentProgram(
          self._whole,
          self.layout,
          sizes,
          devices=[self._rows.devices[node] for node in ring],
      )
      self._programs[is_whole, *ring] = program
    return program, ring

  def _stages(
      self, program: program_lib.SegmentProgram, owners: Owners
  ) -> dict[int, tuple[int, ...]]:
    """Returns the stages that each node holds, in order along the ring."""
    ring = list(dict.fromkeys(owners))
    places = [ring.index(node) for node in owners]
    return {
        node: table_lib.stages_of(places, n)[: program.sizes.num_held]
        for n, node in enumerate(ring)
    }

  def _numbers(self, pipeline: int) -> range:
    (share,) = self._rows.shares[pipeline]
    count = self._table.num_microbatches
    return range(share * count, (share + 1) * count)

  def _inputs(
      self,
      program: program_lib.SegmentProgram,
      owners: Owners,
      numbers: Sequence[int],
  ) -> Sequence[base.PyTree]:
    """Returns weights, microbatches, their numbers, and the step."""
    rows, keys = self._rows, self._whole.batch_keys
    data = [self._feed(m, keys) for m in numbers]
    batch = {key: np.stack([one[key] for one in data])[None] for key in keys}
    weights, batches = [], []
    for node, stages in self._stages(program, owners).items():
      if node in rows.nodes:
        state, device = rows.nodes[node].state, rows.devices[node]
        weights.append(self._packing.pack(program, device, stages, state))
        batches.append(jax.device_put(batch, device))
    return (
        *(program.put(weights), program.put(batches)),
        *(np.array(numbers, np.uint32), np.uint32(self._step)),
    )


def _check(rows: engine_lib.Engine, layout: layout_lib.Layout) -> None:
  """Raises `ValueError` unless programs can run these nodes."""
  if layout.num_stages < 2:
    raise ValueError(
        "One program for all stages needs at least 2 of them, got "
        f"{layout.num_stages}; {layout_lib.ADVICE}."
    )
  nodes = {node for row in rows.owners for node in row}
  devices = {rows.devices[node] for node in nodes}
  if len(devices) != len(nodes):
    raise ValueError(
        "One program for all stages needs a device of its own for each of "
        f"{len(nodes)} nodes, got {len(devices)}; {layout_lib.ADVICE}."
    )
