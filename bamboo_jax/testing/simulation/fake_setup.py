"""The job of the runs of `trainer`: equal layers, slow links."""

import dataclasses
import functools
from typing import Any

from bamboo_jax import config as config_lib
from bamboo_jax.plan import cost_model
from bamboo_jax.train.setup import build, build_recovery, job as job_lib

NUM_SHARES = 2
PER_SHARE = 4  # Microbatches.


@functools.cache
def make_job(layout: str, reroute: str) -> job_lib.Job:
  """Returns the job of a layout of `plans.LEAST`, without task and engine.

  `reroute` is as in `ladder.Ladder`.
  """
  mode = {"templates": "lazy", "replicas": "eager"}.get(layout, "none")
  is_strict = layout == "templates"
  num_stages = 4 if layout == "deep" else 2
  num_pipelines = 1 if layout == "deep" else NUM_SHARES
  config = config_lib.Config().changed(
      {
          "pipeline.layout": "templates" if is_strict else "depth",
          "pipeline.unit": "layer",
          "pipeline.num_stages": num_stages,
          "pipeline.num_pipelines": num_pipelines,
          "pipeline.num_microbatches": NUM_SHARES * PER_SHARE // num_pipelines,
          "pipeline.num_shares": NUM_SHARES,
          "redundancy.mode": mode,
          "redundancy.check_every_steps": 0,
          "recovery.fold": mode != "none",
      }
  )
  num_layers = 2 * num_stages if is_strict else num_stages
  profile = _make_profile(num_layers, forward_ms=1.0)
  plan = build.make_plan(config, profile)
  # So short that new pipelines are made once there are enough nodes.
  short = profile if is_strict else _make_profile(num_layers, forward_ms=0.01)
  rules = build_recovery.make_rules(
      config,
      dataclasses.replace(plan, profile=short),
      build_recovery.make_templates(config, profile),
  )
  rows = build.make_rows(config, plan, rules.segments)
  ladder = dataclasses.replace(rules.ladder, reroute=reroute)
  rules = dataclasses.replace(rules, rows=rows, ladder=ladder)
  absent: Any = None
  return job_lib.Job(config, absent, plan, rows, rules, absent, fills_waits=False)


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
  layers = (dataclasses.replace(layer, name=f"layer_{i}") for i in range(num_layers))
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
