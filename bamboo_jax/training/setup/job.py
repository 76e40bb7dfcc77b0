"""All parts of a run that are made from its config, before it starts."""

from collections.abc import Mapping
import dataclasses
import functools

import jax

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import planner, rows as rows_lib
from bamboo_jax.recovery import assignment, layout as layout_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.training.setup import build, build_recovery, executors, preparation, sizes

_SLACK = 0.05  # Allowed lengthening of a step relative to the finest shares.


@dataclasses.dataclass(frozen=True)
class Job:
  """The parts of a run.

  Attributes:
    engine: The local nodes, without state.
    fills_waits: Whether redundant forward passes fill waits as these occur.
  """

  config: config_lib.Config
  task: build.Task
  plan: planner.Plan
  rows: rows_lib.RowPlanner
  rules: assignment.RecoveryRules
  engine: engine_lib.Engine
  fills_waits: bool

  @functools.cached_property
  def first_layout(self) -> layout_lib.Layout:
    """The layout at the start of a run."""
    if self.config.pipeline.layout != "depth":
      nodes = base.nodes(sizes.num_nodes(self.config))
      return self.rules.start(self.rules.planner.fresh(nodes, {}))
    pipelines = range(self.plan.num_pipelines)
    return self.rules.start([self.rows.pipeline(p) for p in pipelines])

  def find_enough_shares(self) -> int:
    """Returns the fewest shares with which pipelines finish together."""
    batch, predictor = self.plan.batch, self.rules.predictor
    if predictor is None:
      return batch.num_shares
    finer = [
        batch.num_pipelines * n
        for n in range(1, batch.num_microbatches + 1)
        if batch.num_microbatches % n == 0 and batch.num_pipelines * n >= batch.num_shares
    ]
    return predictor.enough_groups(self.first_layout.pipelines, choices=finer, slack=_SLACK)

  def describe_plan(self) -> str:
    """Returns the line on the plan of a step."""
    plan = self.plan
    if self.config.pipeline.layout == "depth":
      return (
          f"plan: {plan.num_pipelines} pipelines x {plan.num_stages} stages, "
          f"layers {plan.partition.bounds}, predicted bubble "
          f"{100 * plan.timeline.mean_bubble:.1f} %"
      )
    parts = [p.partition for p in self.first_layout.pipelines]
    join = lambda values: " + ".join(map(str, values))
    return (
        f"plan: {join(p.num_stages for p in parts)} stages, "
        f"{join(map(len, self.first_layout.shares))} shares of "
        f"{plan.batch.microbatches_per_share} microbatches, layers "
        f"{join(p.bounds for p in parts)}"
    )

  def find_warnings(self) -> list[str]:
    """Returns warnings on likely mistakes in the config, a sentence each."""
    num_shares = self.plan.batch.num_shares
    found = self.task.schedule.find_warnings(self.config.num_steps)
    if self.config.pipeline.layout != "depth":
      if (enough := self.find_enough_shares()) > num_shares:
        found.append(
            f"config.pipeline.num_shares={num_shares} is too coarse for these "
            f"pipelines to finish together; {enough} would do."
        )
    return found


def make_job(
    config: config_lib.Config,
    *,
    devices: Mapping[base.NodeId, jax.Device],
    exchange: transport_lib.Transport | None = None,
    prepared: preparation.Prepared | None = None,
) -> Job:
  """Returns the job of a config; `ValueError` if the config is inconsistent.

  Args:
    devices: Device of each local node, including nodes that join later.
    exchange: Transport to other processes; None without.
    prepared: By default the parts that this process has prepared, if any.
  """
  prepared = prepared or preparation.take(config)
  task = prepared.task
  profile = build.make_profile(config, task)
  is_cluster = exchange is not None
  templates = build_recovery.make_templates(config, profile, is_cluster=is_cluster)
  plan = build.make_plan(
      config,
      profile,
      cuts=executors.find_cuts(config, task),
      is_cluster=is_cluster,
      num_stages=templates[0].partition.num_stages if templates else None,
  )
  rules = build_recovery.make_rules(config, plan, templates)
  fills = is_cluster and not executors.is_program(config)
  rows = build.make_rows(config, plan, rules.segments)
  rules = dataclasses.replace(rules, rows=rows)
  return Job(
      config,
      task,
      plan,
      rows,
      rules,
      build.make_engine(
          config,
          task,
          plan,
          cache=prepared.programs,
          devices=devices,
          exchange=exchange,
          segments=rules.segments,
      ),
      fills_waits=fills,
  )
