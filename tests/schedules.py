"""Schedules that tests write down or read: as text, of equal stages."""

import re

from hypothesis import strategies as st

from bamboo_jax import config as config_lib
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.schedule import (
    costs as costs_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    simulate as simulate_lib,
)

MODES = ("none", "lazy", "bubble", "budget", "eager")
_PATTERN = re.compile(r"(\d+)(F|B|RF|SA|RA|SG|RG)(\d+)(?:[<>](\d+))?")


def parse(text):
  """Returns the instruction that prints as `text`."""
  stage, op, microbatch, peer = _PATTERN.fullmatch(text).groups()
  parsed = instruction_lib.Instruction(
      int(stage), instruction_lib.Op(op), int(microbatch), peer and int(peer)
  )
  assert str(parsed) == text, text
  return parsed


def uniform_costs(num_stages, *, forward_ms=1.0, backward_ms=2.0, transfer_ms=0.0):
  """Returns the costs of equal stages without memory."""
  return costs_lib.StageCosts(
      forward_ms=(forward_ms,) * num_stages,
      backward_ms=(backward_ms,) * num_stages,
      transfer_ms=(transfer_ms,) * (num_stages - 1),
  )


def draw_costs(data, num_stages, *, least_ms):
  """Returns costs of stages whose times differ, without memory."""
  times = st.floats(least_ms, 9.0) | st.just(1.0)
  draw = lambda size: tuple(data.draw(st.lists(times, min_size=size, max_size=size)))
  return costs_lib.StageCosts(*map(draw, (num_stages, num_stages, num_stages - 1)))


def make_timeline(owners, microbatches, transfer_ms=0.0, *, shadows=None):
  """Returns the timeline of a pipeline of equal stages under 1F1B."""
  costs = uniform_costs(len(owners), transfer_ms=transfer_ms)
  bounds = lines_lib.in_flight_limits(len(owners))
  line = lines_lib.Line(owners, microbatches, bounds)
  if not shadows:
    return simulate_lib.simulate([line], costs=costs)
  # Redundant passes run in any wait, however late.
  eager = config_lib.RedundancySection("eager")
  return rows_lib.plan_rows(eager, line, shadows, costs=costs, overrun=99.0).timeline


def passes(timeline):
  """Returns the rows as text, without transfers."""
  rows = timeline.instructions.values()
  return [" ".join(str(i) for i in row if not i.is_transfer) for row in rows]
