"""Makes the SPMD program of a step from a config; see `build` for the rest."""

import math

import ml_collections

from bamboo_jax.plan import planner
from bamboo_jax.runtime.spmd import plan as program_lib
from bamboo_jax.runtime import engine as rows_lib
from bamboo_jax.runtime.spmd import engine as engine_lib
from bamboo_jax.runtime.spmd import layout as layout_lib
from bamboo_jax.runtime.spmd.processes import collectives as collectives_lib
from bamboo_jax.runtime.spmd.ticks import check
from bamboo_jax.train.setup import build


def find_cuts(
    config: ml_collections.ConfigDict, task: build.Task
) -> tuple[int, ...]:
  """Returns the layers at which a stage other than the first may start.

  Raises `ValueError` if the model has too few equal blocks for its stages.
  """
  blocks = layout_lib.blocks_of(task.whole)
  cuts = tuple(cut for cut in blocks.cuts if cut < len(task.whole.names))
  num_stages = config.pipeline.num_stages
  if num_stages > len(cuts) + 1:
    raise ValueError(
        f"config.pipeline.num_stages={num_stages} is too large: the model has "
        f"{blocks.count} equal blocks, and one program for all stages can "
        f"split it into {len(cuts) + 1} at most. Take fewer stages or more "
        f"blocks, or {layout_lib.ADVICE}."
    )
  return cuts


def make_program(
    config: ml_collections.ConfigDict, task: build.Task, plan: planner.Plan
) -> program_lib.ProgramPlan:
  """Returns the program of a plan; its stages must start at `find_cuts`."""
  blocks = layout_lib.blocks_of(task.whole)
  program = program_lib.plan_program(
      plan,
      num_before=blocks.first,
      num_behind=0 if _heads(config) else len(task.whole.names) - blocks.last,
      budget=_budget(config),
      order=config.pipeline.ticks,
  )
  check.check(program.table)
  return program


def make_engine(
    config: ml_collections.ConfigDict,
    task: build.Task,
    program: program_lib.ProgramPlan,
    *,
    rows: rows_lib.Engine,
    collectives: collectives_lib.Collectives | None,
) -> engine_lib.SpmdEngine:
  """Returns the engine of a program, not compiled yet."""
  return engine_lib.SpmdEngine(
      rows,
      task.whole,
      program.table,
      keeps=config.redundancy.mode != "none",
      segment_ticks=config.pipeline.segment_ticks,
      heads=_heads(config),
      collectives=collectives,
  )


def _heads(config: ml_collections.ConfigDict) -> bool:
  return config.pipeline.head == "forward"


def _budget(config: ml_collections.ConfigDict) -> float | None:
  """Returns the allowed share of time for redundant passes; None for none."""
  budgets = {
      "none": None,
      "lazy": None,
      "bubble": 0.0,
      "budget": config.redundancy.budget,
      "eager": math.inf,
  }
  return budgets[config.redundancy.mode]
