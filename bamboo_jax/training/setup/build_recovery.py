"""Makes the rules of layout changes from a config."""

from collections.abc import Sequence
import functools
import math

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import cost_model, memory as memory_lib, partition as partition_lib, planner
from bamboo_jax.plan.times import predictor as predictor_lib
from bamboo_jax.recovery import (
    assignment,
    ladder as ladder_lib,
    planner as planner_lib,
    shapes as shapes_lib,
    templates as templates_lib,
)
from bamboo_jax.training.setup import build


def make_templates(
    config: config_lib.Config, profile: cost_model.Profile, *, is_cluster: bool = False
) -> tuple[templates_lib.Template, ...] | None:
  """Returns the pipeline templates of a config; None if its layout has none.

  They cover any sufficient number of nodes: the deepest has about twice the
  nodes of the smallest (Oobleck, SOSP'23, section 4). Raises
  `base.InfeasibleError` if the model has too few layers or does not fit.
  """
  pipeline, num_failures = config.pipeline, config.recovery.num_failures
  if pipeline.layout != "templates":
    return None
  num_shares = pipeline.num_shares or pipeline.num_pipelines
  memory = build.memory_options(config, is_cluster=is_cluster)
  most_shares = max(1, num_shares - num_failures)  # Others may have one.
  reroutes = memory.pop("reroutes")
  upkeep = memory_lib.Upkeep(
      num_accumulators=most_shares,
      num_rerouted=num_shares - most_shares if reroutes else 0,
      num_shares=most_shares,
      protection=memory.pop("protection"),
      is_remote=memory.pop("is_remote"),
  )
  cuts = build.find_cuts(profile)
  _check_depth(config, most_nodes=len(cuts) + 1)
  make = functools.partial(
      templates_lib.make_templates,
      profile.layers,
      num_failures=num_failures,
      min_nodes=pipeline.num_stages,
      num_microbatches=pipeline.num_pipelines * pipeline.num_microbatches,
      upkeep=upkeep,
      ties=profile.ties,
      cuts=cuts,
      **memory,
  )
  found = make()
  most = min(2 * found[0].partition.num_stages - 1, len(cuts) + 1)
  return found if most <= found[-1].partition.num_stages else make(max_nodes=most)


def _check_depth(config: config_lib.Config, *, most_nodes: int) -> None:
  """Raises `base.InfeasibleError` if templates are deeper than the model."""
  num_stages, policy = config.pipeline.num_stages, config.recovery.policy
  need = functools.partial(
      templates_lib.needed_max_nodes, num_failures=config.recovery.num_failures
  )
  if need(num_stages) <= most_nodes:
    return
  most = max(n for n in range(1, most_nodes + 1) if need(n) <= most_nodes)
  what = f"recovery.policy={policy}" if policy else "pipeline.layout=templates"
  raise base.InfeasibleError(
      f"{what} needs pipelines of up to {need(num_stages)} nodes here "
      f"(templates from num_stages={num_stages} on), but this model can be cut "
      f"into {most_nodes} parts at most. Take "
      f"--config.pipeline.num_stages={most}, or a model with more blocks."
  )


def _make_grid(config: config_lib.Config, plan: planner.Plan) -> shapes_lib.Partitions:
  """Returns the partitions of the depths that Varuna chooses from."""
  most = len(build.find_cuts(plan.profile)) + 1
  depths = {math.ceil(f * plan.num_stages) for f in shapes_lib.GRID_DEPTHS}
  make = functools.partial(build.make_plan, config, plan.profile)
  depths = sorted({min(depth, most) for depth in depths})
  return tuple(make(num_stages=depth).partition for depth in depths)


def make_rules(
    config: config_lib.Config,
    plan: planner.Plan,
    templates: Sequence[templates_lib.Template] | None = None,
) -> assignment.RecoveryRules:
  """Returns the rules for a run that starts with `plan`.

  The number of stages and the partition change only with `templates` or a grid
  of depths. `ValueError` names an option that is not allowed.
  """
  recovery, is_program = config.recovery, config.pipeline.executor == "spmd"
  ladder = ladder_lib.Ladder(
      recovery,
      has_replicas=config.redundancy.mode != "none",
      rerouting="whole_shares" if is_program else "shares",
  )
  num_shares = plan.batch.num_shares
  # A memory limit allows a pipeline only the shares that it starts with.
  is_finer = num_shares > plan.num_pipelines and plan.memory_limit_bytes is None
  by_makespan = templates is not None or is_finer
  predicted = predictor_lib.Predictor(
      plan.profile,
      num_microbatches=plan.batch.total_microbatches,
      num_shares=num_shares,
      by_makespan=by_makespan,
      group=plan.batch.microbatches_per_share,
      redundant=config.redundancy,
  )
  partitions: shapes_lib.Partitions = (plan.partition,)
  if config.pipeline.layout == "grid":
    partitions = _make_grid(config, plan)
  if templates:
    partitions = tuple(template.partition for template in templates)
  shape = shapes_lib.Templates(
      partitions,
      predicted,
      recovery,
      mixes=bool(templates),
      uses_all=config.pipeline.layout != "grid",
      degrades=True,
  )
  return assignment.RecoveryRules(
      segments=partition_lib.refine((plan.partition, *partitions)),
      num_shares=num_shares,
      predictor=predicted if by_makespan else None,
      ladder=ladder,
      planner=planner_lib.Planner(
          shape, planner_lib.PredictedTimes(predicted), fold=recovery.fold, is_strict=shape.mixes
      ),
  )
