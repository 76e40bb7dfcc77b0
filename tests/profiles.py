"""Costs that tests make up; of layers and links what is not said is free."""

from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.plan import cost_model

PRICE = prices_lib.Price(
    instance="node",
    on_demand_usd_per_hour=3.0,
    spot_usd_per_hour=1.0,
    source="test",
    date="2026",
)


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
