"""Costs that tests make up; of layers and links what is not said is free."""

from collections.abc import Iterable
import dataclasses

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.plan import cost_model, planner


def make_price(on_demand: float, spot: float, **facts) -> prices_lib.Price:
  """Returns the price of a node in dollars per hour, with `facts` instead of made-up ones."""
  facts = dict(instance="node", source="test", date="2026") | facts
  return prices_lib.Price(on_demand_usd_per_hour=on_demand, spot_usd_per_hour=spot, **facts)


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
  """Returns the profile of a tiny transformer, by counting operations.

  Layers are an embedding, blocks of attention and MLP, and an untied head, and keep only
  their inputs. State is in float32 with two slots of Adam, activations have 16 bits.
  """
  width, sequence_length, vocab_size = 64, 32, 100
  tokens = microbatch_size * sequence_length

  def estimate(name, num_parameters, flops_per_token):
    forward_ms = 1e3 * tokens * flops_per_token / flops_per_sec
    parameter_bytes, activation_bytes = 4 * num_parameters, 2 * tokens * width
    state_ms = 1e3 * parameter_bytes / 5e11  # The memory bandwidth of a node.
    return cost_model.LayerCost(
        name=name,
        forward_ms=forward_ms,
        backward_ms=3 * forward_ms,
        update_ms=7 * state_ms,  # Reads four such arrays, writes three.
        parameter_bytes=parameter_bytes,
        slot_bytes=2 * parameter_bytes,
        activation_bytes=activation_bytes,
        residual_bytes=activation_bytes,
        norm_ms=state_ms,
    )

  head, attention, perceptron = vocab_size * width, 4 * width**2, 8 * width**2
  layers = [estimate("embed", head, 0.0)]
  for block in range(num_blocks):
    attention_flops = 2 * attention + 4 * sequence_length * width
    layers.append(estimate(f"block_{block:02}.attention", attention, attention_flops))
    layers.append(estimate(f"block_{block:02}.mlp", perceptron, 2 * perceptron))
  layers.append(estimate("head", head, 2 * head))
  return make_profile(
      layers,
      **dict.fromkeys(("link_latency_ms", "reduce_latency_ms"), 0.05),
      **dict.fromkeys(("link_bytes_per_ms", "reduce_bytes_per_ms"), link_bytes_per_sec / 1e3),
      host_bytes_per_ms=1.6e7,
      measured=False,
      fingerprint={"estimate": "transformer"},
  )


def make_plan(profile: cost_model.Profile, **request) -> planner.Plan:
  """Returns a plan of 1 pipeline, 2 stages and 2 microbatches, unless `request` says otherwise."""
  sizes = dict(num_stages=2, num_pipelines=1, num_microbatches=2)
  fields = {field.name for field in dataclasses.fields(config_lib.PipelineSection)}
  sizes |= {name: request.pop(name) for name in fields & {*request}}
  return planner.make_plan(profile, config_lib.PipelineSection(**sizes), **request)
