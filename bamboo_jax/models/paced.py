"""A model whose layers sleep, to emulate many nodes on few cores.

Its arithmetic is negligible, but a node holds each pass of a layer for the time
that a slower machine would take (`runtime.pace`). So 16 nodes on 2 cores take
as long as they would with a core each, all pauses included.
"""

from collections.abc import Sequence
import json
import math
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp

from bamboo_jax.models import layer as layer_lib, linen, model as model_lib
from bamboo_jax.models.text import losses, transformer

Times = Sequence[Sequence[float]]


def make_paced(
    *,
    num_blocks: int = 6,
    forward_ms: float = 5.0,
    backward_ms: float = 10.0,
    profile: str | None = None,
    time_scale: float = 1.0,
    times_ms: Times | None = None,
    jitter: float = 0.0,
    width: int = 8,
    sequence_length: int = 4,
    vocab_size: int = 16,
) -> model_lib.Model:
  """Returns the model; its microbatches are those of GPT-2.

  Args:
    num_blocks: Layers that take `forward_ms` and `backward_ms` each.
    profile: File of `bamboo profile` whose layers and times to use instead.
    time_scale: Divisor of all times.
    times_ms: Times of forward and backward pass by layer, instead.
    jitter: Fraction by which the time of each pass of a stage differs at most.

  Raises:
    ValueError: A size or a time is impossible, or the file is no profile.
    OSError: The file cannot be read.
  """
  if profile is not None:
    times_ms = _read_times(profile)
  elif times_ms is None:
    times_ms = [(forward_ms, backward_ms)] * num_blocks
  times_ms = _scale(times_ms, time_scale)
  if not 0 <= jitter < 1:
    raise ValueError(f"jitter must be from 0 and below 1, got {jitter}.")
  sizes = dict(width=width, sequence_length=sequence_length, vocab_size=vocab_size)
  for name, value in sizes.items():
    if value < 1:
      raise ValueError(f"{name} must be at least 1, got {value}.")
  last, size = len(times_ms) - 1, vocab_size
  layers = [
      linen.make_layer("block_000", _embed, ("inputs",), size=size, width=width),
      *(linen.make_layer(f"block_{i:03d}", _block) for i in range(1, last)),
      linen.make_layer(f"block_{last:03d}", _head, ("targets",), size=size),
  ]
  paces = zip(layers, times_ms, strict=True)
  return model_lib.Model(
      "paced",
      tuple(layers),
      {"name": "paced", "times_ms": times_ms, **sizes},
      dict.fromkeys(("inputs", "targets"), jax.ShapeDtypeStruct((sequence_length,), jnp.int32)),
      paces={
          layer.name: model_lib.Pace(forward_ms, backward_ms, jitter)
          for layer, (forward_ms, backward_ms) in paces
      },
  )


def _scale(times_ms: Times, time_scale: float) -> list[list[float]]:
  """Returns the times divided by `time_scale`, all checked."""
  if not time_scale > 0:
    raise ValueError(f"time_scale must be above 0, got {time_scale}.")
  scaled_ms = [[ms / time_scale for ms in pair] for pair in times_ms]
  if len(scaled_ms) < 2 or any(
      len(pair) != 2 or not all(0 <= ms < math.inf for ms in pair) for pair in scaled_ms
  ):
    raise ValueError(
        "A paced model needs at least two layers, each with the times of a "
        f"forward and a backward pass in ms, at least 0, got {scaled_ms}."
    )
  return scaled_ms


def _read_times(path: str) -> Times:
  try:
    layers = json.loads(pathlib.Path(path).read_text(encoding="utf-8-sig"))["layers"]
    return [(layer["forward_ms"], layer["backward_ms"]) for layer in layers]
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f"{path} is not a file of bamboo profile: {error!r}.") from error


def _embed(
    call: linen.Call, inputs: None, batch: layer_lib.Batch, *, size: int, width: int
) -> jax.Array:
  return nn.Embed(size, width)(batch["inputs"])


def _block(call: linen.Call, inputs: jax.Array, batch: layer_lib.Batch) -> jax.Array:
  return nn.tanh(nn.Dense(inputs.shape[-1])(inputs))


def _head(
    call: linen.Call, inputs: jax.Array, batch: layer_lib.Batch, *, size: int
) -> layer_lib.Loss:
  weight = call.param("weight", transformer.NORMAL, inputs.shape[-1], size)
  return losses.token_loss(inputs, weight, batch["targets"], vocab_first=False)
