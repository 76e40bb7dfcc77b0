"""Everything that follows from a config before a file is written."""

from collections.abc import Mapping
import dataclasses
import functools

import jax
import ml_collections

from bamboo_jax.plan import planner
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.recovery import assignment
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.spmd.processes import collectives as collectives_lib
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import build_program
from bamboo_jax.train.setup import build_recovery
from bamboo_jax.train.setup import preparation
from bamboo_jax.train.setup import sizes

_SLACK = 0.05  # By how much later a step may end than with the finest shares.


@dataclasses.dataclass(frozen=True)
class Job:
  """What is trained, by whom at the start, and how that may change.

  Attributes:
    engine: The local nodes, without state.
    collectives: Of programs over several processes; None of rows.
  """

  config: ml_collections.ConfigDict
  task: build.Task
  plan: planner.Plan
  rows: rows_lib.RowPlanner
  rules: assignment.Rules
  engine: engine_lib.Engine
  collectives: collectives_lib.Collectives | None = None

  @functools.cached_property
  def first_layout(self) -> layout_lib.Layout:
    """The layout at the start of a run."""
    if self.config.pipeline.layout != "depth":
      nodes = range(sizes.num_nodes(self.config))
      return self.rules.start(self.rules.planner.fresh(nodes, {}))
    pipelines = range(self.plan.num_pipelines)
    return self.rules.start([self.rows.pipeline(p) for p in pipelines])

  def find_enough_shares(self) -> int:
    """Returns how many shares would do for pipelines to finish together."""
    batch, predictor = self.plan.batch, self.rules.predictor
    if predictor is None:
      return batch.num_shares
    return predictor.enough_groups(
        self.first_layout.pipelines,
        choices=self._finer_shares(),
        slack=_SLACK,
    )

  def find_enough_to_deal(self) -> int:
    """Returns how many shares would do to deal what a dead node owes.

    That is one of each pipeline for all that hold a stage.
    """
    layout, choices = self.first_layout, self._finer_shares()
    if self.rules.ladder.reroute != "shares":
      return choices[0]
    least = len(layout.pipelines) * self.num_holders
    return next((n for n in choices if n >= least), choices[-1])

  @property
  def num_holders(self) -> int:
    """Number of nodes that hold a stage after the death of its owner."""
    count = len(self.first_layout.pipelines)
    return (2 * count if self.rules.ladder.shadow else count) - 1

  def _finer_shares(self) -> list[int]:
    """Returns possible numbers of shares, from the present one on."""
    batch = self.plan.batch
    return [
        batch.num_pipelines * n
        for n in range(1, batch.num_microbatches + 1)
        if batch.num_microbatches % n == 0
        and batch.num_pipelines * n >= batch.num_shares
    ]

  @property
  def is_program(self) -> bool:
    """Whether a step is one program."""
    return self.config.pipeline.executor == "spmd"


def make_job(
    config: ml_collections.ConfigDict,
    *,
    devices: Mapping[int, jax.Device],
    collectives: collectives_lib.Collectives | None = None,
    exchange: ordered_sum.Exchange | None = None,
    prepared: preparation.Prepared | None = None,
) -> Job:
  """Returns the job of a config; `ValueError` if that does not fit together.

  Args:
    devices: By number of the node, later ones included.
    collectives: Of programs over several processes; None of rows.
    exchange: Joins this process with others; None without.
    prepared: None for what this process has prepared, or else anew.
  """
  prepared = prepared or preparation.take(config)
  task = prepared.task
  profile = build.make_profile(config, task)
  is_program = config.pipeline.executor == "spmd"
  cuts = build_program.find_cuts(config, task) if is_program else None
  is_cluster = exchange is not None
  templates = build_recovery.make_templates(
      config, profile, is_cluster=is_cluster
  )
  plan = build.make_plan(
      config,
      profile,
      cuts=cuts,
      is_cluster=is_cluster,
      num_stages=templates and templates.min_nodes,
  )
  rules = build_recovery.make_rules(config, plan, templates)
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
      collectives,
  )
