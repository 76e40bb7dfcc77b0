"""Costs that tests make up; of layers and links what is not said is free."""

from collections.abc import Iterable
import dataclasses

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.plan import cost_model, planner
from tests import transformer


def make_price(
    on_demand: float,
    spot: float,
    *,
    instance: str = "node",
    source: str = "test",
    date: str = "2026",
) -> prices_lib.Price:
  """Returns the price of a node in dollars per hour."""
  return prices_lib.Price(
      instance=instance,
      on_demand_usd_per_hour=on_demand,
      spot_usd_per_hour=spot,
      source=source,
      date=date,
  )


PRICE = make_price(3.0, 1.0)


def make_layer(name: str, **costs) -> cost_model.LayerCost:
  """Returns a layer with passes of 1 and 2 ms, unless `costs` say otherwise."""
  free = cost_model.LayerCost(
      name=name,
      forward_ms=1.0,
      backward_ms=2.0,
      update_ms=0.0,
      parameter_bytes=0,
      slot_bytes=0,
      activation_bytes=0,
      residual_bytes=0,
  )
  return dataclasses.replace(free, **costs)


def make_profile(layers: Iterable[cost_model.LayerCost], **costs) -> cost_model.Profile:
  """Returns a profile with links that take no time, unless `costs` say so."""
  free = cost_model.Profile(
      layers=tuple(layers),
      link_latency_ms=0.0,
      link_bytes_per_ms=1e12,
      reduce_latency_ms=0.0,
      reduce_bytes_per_ms=1e12,
      dispatch_ms=0.0,
      measured=True,
      fingerprint={},
  )
  return dataclasses.replace(free, **costs)


def make_transformer(
    *,
    num_blocks: int = 4,
    microbatch_size: int = 1,
    flops_per_sec: float = 1e9,
    link_bytes_per_sec: float = 1e9,
) -> cost_model.Profile:
  """Returns the estimated profile of a tiny transformer."""
  return transformer.estimate_transformer(
      num_blocks=num_blocks,
      width=64,
      sequence_length=32,
      vocab_size=100,
      microbatch_size=microbatch_size,
      flops_per_sec=flops_per_sec,
      link_bytes_per_sec=link_bytes_per_sec,
  )


def make_plan(profile: cost_model.Profile, **request) -> planner.Plan:
  """Returns a plan of 1 pipeline, 2 stages and 2 microbatches, unless `request` says otherwise."""
  sizes = dict(num_stages=2, num_pipelines=1, num_microbatches=2)
  fields = {field.name for field in dataclasses.fields(config_lib.PipelineSection)}
  sizes |= {name: request.pop(name) for name in fields & {*request}}
  return planner.make_plan(profile, config_lib.PipelineSection(**sizes), **request)
