"""Costs that tests make up; of layers and links what is not said is free."""

from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.plan import cost_model
from bamboo_jax.sim import transformer


def make_price(on_demand, spot, **more):
  """Returns the price of a node in dollars per hour."""
  default = dict(instance="node", source="test", date="2026")
  return prices_lib.Price(
      on_demand_usd_per_hour=on_demand,
      spot_usd_per_hour=spot,
      **(default | more),
  )


PRICE = make_price(3.0, 1.0)


def make_layer(name, **costs):
  """Returns a layer with passes of 1 and 2 ms, unless `costs` say otherwise."""
  default = dict(
      forward_ms=1.0,
      backward_ms=2.0,
      update_ms=0.0,
      parameter_bytes=0,
      slot_bytes=0,
      activation_bytes=0,
      residual_bytes=0,
  )
  return cost_model.LayerCost(name=name, **(default | costs))


def make_profile(layers, **costs):
  """Returns a profile with links that take no time, unless `costs` say so."""
  default = dict(
      link_latency_ms=0.0,
      link_bytes_per_ms=1e12,
      reduce_latency_ms=0.0,
      reduce_bytes_per_ms=1e12,
      dispatch_ms=0.0,
      measured=True,
      fingerprint={},
  )
  return cost_model.Profile(layers=tuple(layers), **(default | costs))


def make_transformer(**sizes):
  """Returns the estimated profile of a tiny transformer of 4 blocks."""
  default = dict(
      num_blocks=4,
      width=64,
      sequence_length=32,
      vocab_size=100,
      microbatch_size=1,
      flops_per_sec=1e9,
      link_bytes_per_sec=1e9,
  )
  return transformer.estimate_transformer(**(default | sizes))
