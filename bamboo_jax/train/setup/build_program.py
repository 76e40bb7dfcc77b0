"""Makes a step that is one program from a config; the rest is in `build`."""

from collections.abc import Mapping, Sequence
import math

import jax
import ml_collections
import numpy as np

from bamboo_jax.plan import planner
from bamboo_jax.plan import program as program_lib
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.spmd import engine as engine_lib
from bamboo_jax.runtime.spmd import layout as layout_lib
from bamboo_jax.schedule.ticks import check
from bamboo_jax.train.setup import build


def find_cuts(
    config: ml_collections.ConfigDict, task: build.Task
) -> tuple[int, ...]:
  """Returns the layers at which a stage other than the first may start.

  Raises:
    ValueError: The stages cannot be made of equal blocks, or another option
      needs the executor `rows`.
  """
  _check_config(config)
  blocks = layout_lib.blocks_of(task.whole)
  cuts = tuple(cut for cut in blocks.cuts if cut < len(task.layer_names))
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
  """Returns the program of a plan whose stages are made of whole blocks."""
  blocks = layout_lib.blocks_of(task.whole)
  program = program_lib.plan_program(
      plan,
      num_before=blocks.first,
      num_behind=len(task.layer_names) - blocks.last,
      budget=_budget(config),
  )
  check.check(program.table)
  return program


def make_engine(
    config: ml_collections.ConfigDict,
    task: build.Task,
    program: program_lib.ProgramPlan,
    *,
    owners: Sequence[Sequence[int]],
    devices: Mapping[int, jax.Device] | None = None,
) -> engine_lib.SpmdEngine:
  """Returns the engine of the program, with nothing compiled and no state yet.

  `owners` is by pipeline and stage; `devices` by node, None hands out those of
  this process.
  """
  if devices is None:
    devices = devices_lib.place_nodes(list(range(build.num_nodes(config))))
  return engine_lib.SpmdEngine(
      task.whole,
      bounds=program.plan.partition.bounds,
      table=program.table,
      devices=np.array([[devices[node] for node in row] for row in owners]),
      num_microbatches=program.plan.batch.num_microbatches,
      clip_norm=config.optimizer.clip_norm,
      on_nonfinite=config.optimizer.on_nonfinite,
      replicas=config.redundancy.mode != "none",
      refresh=config.redundancy.refresh,
  )


def block_period(task: build.Task) -> int:
  """Returns the number of layers of the block that repeats."""
  return layout_lib.blocks_of(task.whole).period


def refresh_bytes(
    config: ml_collections.ConfigDict, task: build.Task, plan: planner.Plan
) -> int:
  """Returns the bytes that a step sends to replicas, without padding."""
  redundancy = config.redundancy
  if redundancy.mode == "none":
    return 0
  blocks = layout_lib.blocks_of(task.whole)
  by_state = redundancy.refresh == "state"
  return plan.num_pipelines * sum(
      layer.parameter_bytes + (layer.slot_bytes if by_state else 0)
      for layer in plan.profile.layers[blocks.first : blocks.last]
  )


def _budget(config: ml_collections.ConfigDict) -> float | None:
  """Returns by how much redundant forward passes may lengthen a step."""
  budgets = {
      "none": None,
      "lazy": None,
      "bubble": 0.0,
      "budget": config.redundancy.budget,
      "eager": math.inf,
  }
  return budgets[config.redundancy.mode]


def _check_config(config: ml_collections.ConfigDict) -> None:
  """Raises `ValueError` for options that only rows support."""
  pipeline, redundancy = config.pipeline, config.redundancy
  if pipeline.num_shares not in (None, pipeline.num_pipelines):
    raise ValueError(
        f"config.pipeline.num_shares={pipeline.num_shares} must be the number "
        f"of pipelines, {pipeline.num_pipelines}, in one program for all "
        f"stages; {layout_lib.ADVICE}."
    )
  if redundancy.mode != "none" and redundancy.slots != "device":
    raise ValueError(
        f"config.redundancy.slots={redundancy.slots!r} must be 'device' in one "
        f"program for all stages; {layout_lib.ADVICE}."
    )
