"""Plans a step as one program: its ticks, how long they take, and the memory of a node.

The program runs the passes of the same rows, see `spmd.ticks`. The
layers behind the blocks run forward and backward in the backward pass of the
last stage, and those before the blocks run a second time in the backward pass
of the first.
"""

from collections.abc import Sequence
import dataclasses
import math

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.plan import cost_model, partition as partition_lib, planner
from bamboo_jax.runtime.spmd import (
    layout as layout_lib,
    program as program_lib,
    ticks as ticks_lib,
)
from bamboo_jax.schedule import (
    costs as costs_lib,
    instruction as instruction_lib,
    redundancy,
    timeline as timeline_lib,
)

_Op = instruction_lib.Op


@dataclasses.dataclass(frozen=True)
class ProgramPlan:
  """A step of all pipelines as one program.

  Attributes:
    plan: Costs, times and memory of the program.
    table: The ticks.
    sizes: Of the program at the start of a step, and of that of its rest after a death.
  """

  plan: planner.Plan
  layout: layout_lib.BlockLayout
  table: ticks_lib.TickTable
  sizes: tuple[ticks_lib.Sizes, ticks_lib.Sizes]

  @property
  def keeps(self) -> bool:
    """Whether a death can be survived."""
    return self.sizes[0].keeps

  @property
  def plain(self) -> timeline_lib.Timeline:
    """The timeline with redundant forward passes that take no time."""
    nothing_ms = (0.0,) * self.plan.num_stages
    return lay_out(self.table, dataclasses.replace(self.plan.costs, redundant_ms=nothing_ms))

  def passes(self, secs: float) -> account_lib.NodeTime:
    """Returns the node time of the passes of a step, scaled to `secs`."""
    slots = self.plan.timeline.slots
    span_ms = max((slot.end_ms for slot in slots), default=0.0) or 1.0
    useful_ms, redundant_ms = (
        sum(s.end_ms - s.start_ms for s in slots if s.instruction.op in ops)
        for ops in ((_Op.FORWARD, _Op.BACKWARD), (_Op.REDUNDANT_FORWARD,))
    )
    node_time = account_lib.NodeTime(useful=useful_ms, redundant=redundant_ms)
    return node_time * (self.plan.num_pipelines * secs / span_ms)

  def describe(self) -> str:
    """Returns the utilisation of the ticks as text."""
    timeline, plain = self.plan.timeline, self.plain
    effect = redundancy.Effect.of([plain], [timeline])
    return (
        f"{len(self.table.ticks)} ticks, "
        f"{effect.passes} redundant forward passes; predicted "
        f"overhead {100 * effect.overhead:.1f} %, bubble "
        f"{100 * timeline.mean_bubble:.1f} % instead of "
        f"{100 * plain.mean_bubble:.1f} %"
    )


def plan_program(
    plan: planner.Plan,
    layout: layout_lib.BlockLayout,
    redundant: config_lib.RedundancySection,
    segment_ticks: int | None = None,
) -> ProgramPlan:
  """Returns the program of a plan whose stages are made of whole blocks.

  Args:
    plan: The plan by rows.
    layout: Its stages.
    segment_ticks: See `program.find_sizes`.

  Raises:
    base.InfeasibleError: A node needs more memory than the plan allows.
  """
  costs = program_costs(plan.partition, plan.profile, layout)
  table = ticks_lib.lower(
      plan.timeline.slots, owners=plan.owners[0], microbatches=plan.batch.microbatches(0)
  )
  if redundant.runs_ahead:
    budgets = {"bubble": 0.0, "budget": redundant.budget, "eager": math.inf}
    table = ticks_lib.fill(table, costs=costs, budget=budgets[redundant.mode])
  keeps = redundant.has_replicas
  sizes = program_lib.find_sizes(table, keeps=keeps, segment_ticks=segment_ticks)
  programs = (find_memory(plan.profile.layers, layout, one) for one in sizes[: 1 + keeps])
  needed = max(programs, key=lambda fields: sum(fields.values()))
  memory = tuple(dataclasses.replace(node, **needed) for node in plan.memory)
  peak_bytes, limit = max(node.total_bytes for node in memory), plan.memory_limit_bytes
  if limit is not None and peak_bytes > limit:
    raise base.InfeasibleError(
        f"One program for all stages needs {peak_bytes / 2**20:,.1f} MiB on a node, more than the "
        f"limit of {limit / 2**20:,.1f} MiB. Take fewer microbatches or more stages, or "
        f"{layout_lib.ADVICE} and need less."
    )
  timeline = lay_out(table, costs)
  step_time = dataclasses.replace(plan.step_time, compute_ms=timeline.span_ms)
  plan = dataclasses.replace(
      plan, costs=costs, timeline=timeline, step_time=step_time, memory=memory
  )
  return ProgramPlan(plan, layout, table, sizes)


def lay_out(table: ticks_lib.TickTable, costs: costs_lib.StageCosts) -> timeline_lib.Timeline:
  """Returns the timeline of a table.

  A tick lasts as long as its busiest node, plus the longest transfer.
  """
  slots, start_ms = list[timeline_lib.Slot](), 0.0
  exchange_ms = 2 * max(costs.transfer_ms, default=0.0)
  for tick in table.ticks:
    ends_ms = [start_ms]
    for n, own in base.by_node(tick):
      at_ms = start_ms
      for i in own:
        slots.append(timeline_lib.Slot(n, i, at_ms, at_ms + costs.time_ms(i)))
        at_ms = slots[-1].end_ms
      ends_ms.append(at_ms)
    start_ms = max(ends_ms) + exchange_ms
  return timeline_lib.Timeline.of(slots, dict.fromkeys(base.nodes(table.num_nodes), start_ms))


def program_costs(
    partition: partition_lib.Partition, profile: cost_model.Profile, layout: layout_lib.BlockLayout
) -> costs_lib.StageCosts:
  """Returns the costs of the stages in a program, without dispatch times."""
  costs = dataclasses.replace(profile, dispatch_ms=0.0).stage_costs(partition.bounds)
  once_ms = lambda layers: sum(profile.layers[i].forward_ms for i in layers)
  forward_ms, backward_ms = list(costs.forward_ms), list(costs.backward_ms)
  forward_ms[-1] = max(0.0, forward_ms[-1] - once_ms(layout.epilogue))
  backward_ms[-1] += once_ms(layout.epilogue)
  backward_ms[0] += once_ms(layout.prologue)
  return dataclasses.replace(
      costs,
      forward_ms=tuple(forward_ms),
      backward_ms=tuple(backward_ms),
      redundant_ms=tuple(forward_ms),  # They skip the epilogue.
  )


def find_memory(
    layers: Sequence[cost_model.LayerCost], layout: layout_lib.BlockLayout, sizes: ticks_lib.Sizes
) -> dict[str, int]:
  """Returns the fields of `NodeMemory` that a program decides; all nodes need the same.

  weights      of the stages that it holds and of both ends, as passes read them
  carry        residuals, values between stages, and sums of gradients; twice if
               the next segment may have to start again from the same arguments
  temporary    residuals and scratch memory of the epilogue, scratch memory of
               the prologue, what a backward pass recomputes of a block, and
               residuals on their way to the host
  """
  parts = (layout.block, layout.prologue, layout.epilogue)
  block, before, behind = ([layers[i] for i in part] for part in parts)
  read = lambda own: sum(c.copy_bytes or c.parameter_bytes for c in own)
  gradients = lambda own: sum(c.gradient_bytes for c in own)
  residuals = lambda own: sum(c.residual_bytes for c in own)
  working = lambda own: max((c.working_bytes for c in own), default=0)
  (*values, num_kept), value, count = sizes.buffers, block[-1].activation_bytes, layout.count
  kept = count * residuals(block) + value
  sums = sizes.owned * count * gradients(block) + gradients(before + behind)
  copies = 2 if sizes.keeps else 1  # Arguments and results.
  whole = lambda own: max(residuals(own), working(own) - gradients(own))  # Recomputed or kept.
  temporary = whole(behind) + working(behind) + working(before) + whole(block) - residuals(block)
  temporary += bool(sizes.offloads) * kept
  return dict(
      copy_bytes=sizes.held * count * read(block) + read(before + behind),
      residual_bytes=copies * num_kept * kept,
      transfer_bytes=copies * sum(values) * value,
      working_bytes=temporary + copies * sums,
  )
