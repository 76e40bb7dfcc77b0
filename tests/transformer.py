"""Estimates the costs of a transformer's layers by counting operations.

A forward pass takes two operations per parameter and token, plus those of
attention; a backward pass takes twice as many, plus a forward pass if only
inputs are kept. Layers are an embedding, blocks of attention and MLP, and an
untied head. State is in float32 with two slots of Adam, activations have 16
bits.
"""

import functools

from bamboo_jax.plan import cost_model

_STATE_BYTES = 4
_ACTIVATION_BYTES = 2


def estimate_transformer(
    *,
    num_blocks: int,
    width: int,
    sequence_length: int,
    vocab_size: int,
    microbatch_size: int,
    flops_per_sec: float,
    link_bytes_per_sec: float,
    link_latency_secs: float = 50e-6,
    bytes_per_sec: float = 5e11,
    host_bytes_per_sec: float = 1.6e10,
) -> cost_model.Profile:
  """Returns the profile of a transformer.

  Args:
    flops_per_sec: Operations per second of a node.
    link_latency_secs: Time of any transfer between two nodes, added to that of
      its bytes; may be 0.
    bytes_per_sec: Memory bandwidth of a node.
    host_bytes_per_sec: Rate of the copies of residuals to host memory.

  Raises:
    ValueError: A number is not above 0.
  """
  for name, value in locals().items():
    if not (value > 0 or name == "link_latency_secs" and value == 0):
      raise ValueError(f"{name} must be above 0, got {value}.")
  tokens = microbatch_size * sequence_length
  layer = functools.partial(
      _estimate_layer,
      tokens=tokens,
      flops_per_sec=flops_per_sec,
      bytes_per_sec=bytes_per_sec,
      activation_bytes=_ACTIVATION_BYTES * tokens * width,
  )
  head, attention, perceptron = vocab_size * width, 4 * width**2, 8 * width**2
  attention_flops = 2 * attention + 4 * sequence_length * width
  layers = [layer("embed", head, 0.0)]
  for block in range(num_blocks):
    layers += [
        layer(f"block_{block:02}.attention", attention, attention_flops),
        layer(f"block_{block:02}.mlp", perceptron, 2 * perceptron),
    ]
  layers.append(layer("head", head, 2 * head))
  return cost_model.Profile(
      layers=tuple(layers),
      link_latency_ms=1e3 * link_latency_secs,
      link_bytes_per_ms=link_bytes_per_sec / 1e3,
      reduce_latency_ms=1e3 * link_latency_secs,
      reduce_bytes_per_ms=link_bytes_per_sec / 1e3,
      dispatch_ms=0.0,
      measured=False,
      host_bytes_per_ms=host_bytes_per_sec / 1e3,
      fingerprint={"estimate": "transformer"},
  )


def _estimate_layer(
    name: str,
    num_parameters: int,
    flops_per_token: float,
    *,
    tokens: int,
    flops_per_sec: float,
    bytes_per_sec: float,
    activation_bytes: int,
) -> cost_model.LayerCost:
  """Returns the cost of a layer that keeps only its inputs."""
  forward_ms = 1e3 * tokens * flops_per_token / flops_per_sec
  parameter_bytes = _STATE_BYTES * num_parameters
  state_ms = 1e3 * parameter_bytes / bytes_per_sec
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
