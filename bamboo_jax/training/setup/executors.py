"""Picks the executor of a config; see `build` for the rest.

Nothing else names a module of `runtime.spmd`.
"""

from collections.abc import Sequence

import jax

from bamboo_jax import config as config_lib
from bamboo_jax.plan import planner
from bamboo_jax.runtime import engine as engine_lib, executor as executor_lib
from bamboo_jax.runtime.spmd import (
    executor as spmd_executor,
    layout as layout_lib,
    passes as passes_lib,
    plan as plan_lib,
    processes as processes_lib,
    program as program_lib,
)
from bamboo_jax.training.setup import build

Executor = executor_lib.Executor | spmd_executor.Programs
SharedMemory = processes_lib.SharedMemory
ProcessRing = processes_lib.ProcessRing
ProgramPlan = plan_lib.ProgramPlan
run_child = processes_lib.live


def is_program(config: config_lib.Config) -> bool:
  """Returns whether a step is one program per pipeline, not rows."""
  return config.pipeline.executor == "spmd"


def find_cuts(config: config_lib.Config, task: build.Task) -> tuple[int, ...] | None:
  """Returns the layers at which a stage other than the first may start.

  None for rows, see `build.find_cuts`. Raises `ValueError` unless equal blocks
  of the model can be dealt to its stages evenly.
  """
  if not is_program(config):
    return None
  return layout_lib.split_blocks(task.whole, config.pipeline.num_stages).cuts


def plan_program(config: config_lib.Config, task: build.Task, plan: planner.Plan) -> ProgramPlan:
  """Returns the program of a plan; its stages must start at `find_cuts`."""
  return plan_lib.plan_program(
      plan,
      layout_lib.make_layout(task.whole, plan.partition.bounds),
      config.redundancy,
      config.pipeline.segment_ticks,
  )


def make_segments(
    config: config_lib.Config, task: build.Task, plan: planner.Plan, devices: Sequence[jax.Device]
) -> dict[str, program_lib.SegmentProgram]:
  """Returns the programs of a pipeline on `devices`, not compiled yet.

  By name: "segment", and "rest" for after a death, if one can be survived.
  """
  program = plan_program(config, task, plan)
  passes, (first, rest) = passes_lib.StagePasses(task.whole, program.layout), program.sizes
  sizes = {"segment": first} | ({"rest": rest} if program.keeps else {})
  return {name: program_lib.SegmentProgram(passes, size, devices) for name, size in sizes.items()}


def make_executor(
    config: config_lib.Config,
    task: build.Task,
    plan: planner.Plan,
    *,
    engine: engine_lib.Engine,
    members: executor_lib.Members,
    processes: ProcessRing | None = None,
) -> Executor:
  """Returns the executor of a config, not compiled yet."""
  if not is_program(config):
    return executor_lib.Executor(engine, members)
  program = plan_program(config, task, plan)
  return spmd_executor.Programs(program, task.whole, engine, members, processes)
