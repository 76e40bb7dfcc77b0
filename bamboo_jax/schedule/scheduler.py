"""Plans the rows of one pipeline, for a whole step or for the rest of one.

Both differ only in the owners of stages and in the nodes' holdings. Planning
has three steps, each a module; their time is about proportional to the number
of instructions. For two stages and two microbatches:

  1. owed             0F0 0F1 0B0 0B1 | 1F0 1F1 1B0 1B1
  2. one_f_one_b      node 0: 0F0 0F1 0B0 0B1        node 1: 1F0 1B0 1F1 1B1
  3. place_transfers  node 0: 0F0 0SA0>1 0F1 0RG0<1 0SA1>1 0B0 0RG1<1 0B1
                      node 1: 0RA0<0 1F0 1B0 0SG0>0 0RA1<0 1F1 1B1 0SG1>0
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    timeline as timeline_lib,
)
from bamboo_jax.schedule.scheduling import one_f_one_b, owed as owed_lib, place_transfers

SCHEDULES = ("1f1b", "gpipe")


def one_f_one_b_bounds(num_stages: int) -> tuple[int, ...]:
  """Returns the number of microbatches in flight on each stage in 1F1B."""
  return tuple(range(num_stages, 0, -1))


def in_flight_limits(schedule: str, num_stages: int) -> tuple[int, ...] | None:
  """Returns the microbatches in flight that a schedule allows on each stage.

  None: any number. `ValueError` for a schedule other than "1f1b" and "gpipe".
  """
  if schedule not in SCHEDULES:
    raise ValueError(base.suggest(schedule, SCHEDULES, what="schedule"))
  if schedule == "gpipe":
    return None
  return one_f_one_b_bounds(num_stages)


def in_flight_bounds(schedule: str, num_stages: int, num_microbatches: int) -> tuple[int, ...]:
  """Returns the most microbatches whose residuals each stage keeps at once."""
  limits = in_flight_limits(schedule, num_stages)
  limits = limits or (num_microbatches,) * num_stages
  return tuple(min(limit, num_microbatches) for limit in limits)


def plan_rows(
    lines: Sequence[lines_lib.Line],
    *,
    costs: costs_lib.StageCosts,
    holdings: lines_lib.Holdings | None = None,
    shadows: Mapping[base.StageId, base.NodeId] | None = None,
    redundant: Collection[int] | None = None,
) -> instruction_lib.Schedule:
  """Returns rows that finish the step of all lines, usually of one.

  Args:
    holdings: Data that each node holds now; a missing node holds nothing.
    shadows: Only with a single line: node that runs the redundant forward
      passes of a stage, as soon as possible; `redundancy` places them better.
    redundant: Microbatches of these passes; by default all.

  Raises:
    ValueError: A line does not have an owner for each stage.
    base.InfeasibleError: The step cannot be finished from these holdings.
  """
  for line in lines:
    if len(line.owners) != costs.num_stages:
      raise ValueError(
          f"owners must name a node for each of the {costs.num_stages} stages "
          f"of costs, got {list(line.owners)}."
      )
  holdings = holdings or {}
  owed = [
      owed_lib.find_owed(
          owners=line.owners,
          microbatches=line.microbatches,
          holdings=holdings,
          shadows=shadows or {},
          redundant=line.microbatches if redundant is None else redundant,
      )
      for line in lines
  ]
  passes = one_f_one_b.order_passes(lines, owed, costs=costs, holdings=holdings, shadows=shadows)
  return place_transfers.place_transfers(
      passes,
      [transfer for one in owed for transfer in one.transfers],
      costs=costs,
      holdings=holdings,
  )


class TimedRows(NamedTuple):
  """Rows and their times."""

  schedule: instruction_lib.Schedule
  timeline: timeline_lib.Timeline


def play(
    lines: Sequence[lines_lib.Line],
    *,
    costs: costs_lib.StageCosts,
    holdings: lines_lib.Holdings | None = None,
    **redundant: Any,
) -> TimedRows:
  """Returns the rows of `plan_rows`, and their timeline; same arguments.

  Raises as `plan_rows` and `timeline.play`.
  """
  rows = plan_rows(lines, costs=costs, holdings=holdings, **redundant)
  timeline = timeline_lib.play(rows, lines, costs=costs, holdings=holdings)
  return TimedRows(rows, timeline)


def span_ms(
    lines: Sequence[lines_lib.Line],
    *,
    costs: costs_lib.StageCosts,
    holdings: lines_lib.Holdings | None = None,
) -> float:
  """Returns the duration of the rows of `plan_rows`, without checking them."""
  rows = plan_rows(lines, costs=costs, holdings=holdings)
  return timeline_lib.span_ms(rows, costs)
