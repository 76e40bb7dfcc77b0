"""The rows of a whole step of a pipeline, and the rules that fill their waits."""

from collections.abc import Mapping

from bamboo_jax import base, config as config_lib
from bamboo_jax.schedule import (
    costs as costs_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    redundancy,
    rule as rule_lib,
    simulate as simulate_lib,
)

Op = instruction_lib.Op
_OVERRUN = 1.6  # How much too late a pass of mode "eager" may end, by its own time.


def plan_rows(
    redundant: config_lib.RedundancySection,
    line: lines_lib.Line,
    shadows: Mapping[base.StageId, base.NodeId],
    *,
    costs: costs_lib.StageCosts,
    overrun: float = _OVERRUN,
) -> redundancy.PlannedRows:
  """Returns the rows of a whole step of one pipeline; `shadows` hold the replicas of stages."""
  bare = simulate_lib.simulate([line], costs=costs)
  rules = {}
  if shadows and redundant.runs_ahead:
    latest_ms = rule_lib.find_latest_ms(bare, costs)
    for node in bare.nodes:
      passes = [
          instruction_lib.Instruction(stage, Op.REDUNDANT_FORWARD, microbatch)
          for microbatch in line.microbatches
          for stage, shadow in shadows.items()
          if shadow == node
      ]
      rules[node] = rule_lib.WaitRule(
          passes=passes,
          pass_ms=costs.time_ms,
          latest_ms=latest_ms[node],
          span_ms=bare.span_ms,
          late=overrun if redundant.mode == "eager" else -redundant.margin,
          late_ms=redundant.budget * bare.span_ms if redundant.mode == "budget" else 0.0,
      )
  return redundancy.PlannedRows(bare, rules, costs)
