"""A small next-token network with batch norm, to test statistics."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bamboo_jax.models import layer as layer_lib, linen, model as model_lib
from bamboo_jax.models.text import losses, transformer

_MOMENTUM = 0.9

Streams = dict[str, jax.Array]


def make_mlp_bn(
    *, num_blocks: int = 2, width: int = 16, sequence_length: int = 8, vocab_size: int = 32
) -> model_lib.Model:
  """Returns the network; a microbatch is as that of GPT-2."""
  fingerprint = {
      "name": "tests.mlp_bn:make_mlp_bn",
      "num_blocks": num_blocks,
      "width": width,
      "sequence_length": sequence_length,
      "vocab_size": vocab_size,
  }
  embed, head = {"size": vocab_size, "width": width}, {"size": vocab_size}
  layers = [linen.make_layer("embed", _embed, ("inputs",), **embed)]
  for block in range(num_blocks):
    layers.append(linen.make_layer(f"block_{block:02d}", _block))
  layers.append(linen.make_layer("head", _head, ("targets",), **head))
  tokens = jax.ShapeDtypeStruct((sequence_length,), jnp.int32)
  sample = {"inputs": tokens, "targets": tokens}
  return model_lib.Model(fingerprint["name"], tuple(layers), fingerprint, sample)


def _embed(
    call: linen.Call, inputs: None, batch: layer_lib.Batch, *, size: int, width: int
) -> Streams:
  """Embeds tokens: a stream, and the skip connection."""
  embedded = nn.Embed(size, width)(batch["inputs"])
  return {"h": embedded, "skip": embedded}


def _block(call: linen.Call, inputs: Streams, batch: layer_lib.Batch) -> Streams:
  """A product, batch normalisation and ReLU."""
  h = nn.Dense(inputs["h"].shape[-1])(inputs["h"])
  h = nn.BatchNorm(use_running_average=not call.train, momentum=_MOMENTUM)(h)
  return {"h": nn.relu(h), "skip": inputs["skip"]}


def _head(
    call: linen.Call, inputs: Streams, batch: layer_lib.Batch, *, size: int
) -> layer_lib.Loss:
  """Adds the skip connection, projects, and compares with the targets."""
  h = inputs["h"] + inputs["skip"]
  weight = call.param("weight", transformer.NORMAL, h.shape[-1], size)
  return losses.token_loss(h, weight, batch["targets"], vocab_first=False)
