"""Everything that follows from a config before a file is written."""

from collections.abc import Mapping
import dataclasses

import jax
import ml_collections

from bamboo_jax.plan import planner
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.recovery import assignment as layout_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import transfer_log
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import build_program
from bamboo_jax.train.setup import build_recovery


@dataclasses.dataclass(frozen=True)
class Job:
  """What is trained, by whom at the start, and how that may change.

  Attributes:
    engine: The local nodes, without state.
  """

  config: ml_collections.ConfigDict
  task: build.Task
  plan: planner.Plan
  rows: rows_lib.RowPlanner
  rules: layout_lib.Rules
  engine: engine_lib.Engine

  @property
  def is_program(self) -> bool:
    """Whether a step is one program."""
    return self.config.pipeline.executor == "spmd"


def make_job(
    config: ml_collections.ConfigDict,
    *,
    devices: Mapping[int, jax.Device],
    log: transfer_log.TransferLog | None = None,
    cache: program_cache.ProgramCache | None = None,
    whole: spec_lib.StageSpec | None = None,
) -> Job:
  """Returns the job of a config.

  Args:
    devices: By number of the node, later ones included.
    log: All transfers to other processes pass it; None without others.
    cache: Programs that were compiled before.
    whole: The model that those programs are of.

  Raises:
    ValueError: The config does not fit together; nothing has been written.
  """
  task = build.make_task(config)
  if whole is not None:
    task = dataclasses.replace(task, whole=whole)
  profile = build.make_profile(config, task)
  is_program = config.pipeline.executor == "spmd"
  cuts = build_program.find_cuts(config, task) if is_program else None
  plan = build.make_plan(config, profile, cuts=cuts, is_cluster=log is not None)
  return Job(
      config,
      task,
      plan,
      build.make_rows(config, plan),
      build_recovery.make_rules(config, plan),
      build.make_engine(
          config,
          task,
          plan,
          cache=cache or program_cache.ProgramCache(),
          devices=devices,
          log=log,
      ),
  )
