"""Rules and rows of the runs of `trainer`: equal layers, slow links."""

import dataclasses
import functools

from bamboo_jax.plan import cost_model
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import planner as planner_lib
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.plan.times import predictor as predictor_lib
from bamboo_jax.recovery import assignment
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.recovery import placement as placement_lib
from bamboo_jax.recovery import planner as recovery_planner
from bamboo_jax.recovery import shapes as shapes_lib
from bamboo_jax.recovery.oobleck import cover as cover_lib
from bamboo_jax.recovery.oobleck import templates as templates_lib

NUM_SHARES = 2
PER_SHARE = 4  # Microbatches.


@dataclasses.dataclass(frozen=True)
class FakeSetup:
  """Rules and rows of a run; `num_stages` counts what is never split."""

  rules: assignment.RecoveryRules
  rows: rows_lib.RowPlanner
  num_pipelines: int

  @property
  def num_stages(self) -> int:
    """Number of stages of a pipeline."""
    return self.rules.segments.num_stages

  @property
  def first_layout(self) -> layout_lib.Layout:
    """The layout from which a run begins."""
    pipelines = map(self.rows.pipeline, range(self.num_pipelines))
    return self.rules.start([*pipelines])


@functools.cache
def make_setup(layout: str, reroute: str) -> FakeSetup:
  """Returns the setup of a layout of `plans.LEAST`."""
  mode = {"templates": "lazy", "replicas": "eager"}.get(layout, "none")
  has_replicas, is_strict = mode != "none", layout == "templates"
  num_stages = 4 if layout == "deep" else 2
  num_pipelines = 1 if layout == "deep" else NUM_SHARES
  num_layers = 2 * num_stages if is_strict else num_stages
  # So short that new pipelines are made once there are enough nodes.
  profile = _make_profile(num_layers, forward_ms=1.0 if is_strict else 0.01)
  predicted = predictor_lib.Predictor(
      profile,
      num_microbatches=NUM_SHARES * PER_SHARE,
      num_shares=NUM_SHARES,
      split="makespan" if is_strict else "even",
      group=PER_SHARE,
      redundant=rows_lib.Redundancy(mode),
  )
  partitions = (partition_lib.Partition(tuple(range(num_stages + 1))),)
  shape: shapes_lib.Shapes = shapes_lib.Depth(
      partitions[0],
      profile,
      has_replicas=has_replicas,
      max_pipelines=NUM_SHARES,
  )
  if is_strict:
    templates = templates_lib.make_templates(
        profile.layers,
        num_failures=1,
        min_nodes=num_stages,
        max_nodes=2 * num_stages - 1,
    )
    partitions = tuple(t.partition for t in templates.templates)
    coverer = cover_lib.Coverer(templates, predicted, degrades=True)
    shape = shapes_lib.TemplateShapes(coverer, "replanning")
  segments = partition_lib.refine(partitions)
  plan = planner_lib.make_plan(
      _make_profile(num_layers, forward_ms=1.0),
      num_stages=num_stages,
      num_pipelines=num_pipelines,
      num_microbatches=NUM_SHARES * PER_SHARE // num_pipelines,
      num_shares=NUM_SHARES,
      microbatch_size=1,
  )
  rows = rows_lib.RowPlanner(plan, rows_lib.Redundancy(mode), segments)
  rules = assignment.RecoveryRules(
      segments=segments,
      num_shares=NUM_SHARES,
      predictor=predicted if is_strict else None,
      rows=rows,
      ladder=ladder_lib.Ladder(
          shadow=has_replicas, reroute=reroute, fold=has_replicas
      ),
      planner=recovery_planner.Planner(
          shape,
          placement_lib.Placer("spread", has_replicas=has_replicas),
          recovery_planner.PredictedTimes(predicted),
          fold=has_replicas,
          is_strict=is_strict,
      ),
  )
  return FakeSetup(rules, rows, num_pipelines)


def _make_profile(num_layers: int, *, forward_ms: float) -> cost_model.Profile:
  """Returns the costs of equal layers, whose links are slow."""
  layer = cost_model.LayerCost(
      name="",
      forward_ms=forward_ms,
      backward_ms=2 * forward_ms,
      update_ms=0.1,
      parameter_bytes=1024,
      slot_bytes=2048,
      activation_bytes=64,
      residual_bytes=64,
  )
  layers = (
      dataclasses.replace(layer, name=f"layer_{i}") for i in range(num_layers)
  )
  return cost_model.Profile(
      layers=tuple(layers),
      link_latency_ms=0.1,
      link_bytes_per_ms=1024.0,
      reduce_latency_ms=0.0,
      reduce_bytes_per_ms=1e9,
      dispatch_ms=0.0,
      measured=True,
      fingerprint={},
  )
