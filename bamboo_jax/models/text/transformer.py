"""Parts shared by transformers: the order of layers, products, the head."""

from collections.abc import Callable
import dataclasses
from typing import Any

import flax.linen as nn
import jax

from bamboo_jax import base
from bamboo_jax.models import layer as layer_lib, linen, model as model_lib
from bamboo_jax.models.text import losses

NORMAL = nn.initializers.normal(0.02)


def make_model(
    name: str,
    shape: Any,
    *functions: Callable[..., base.PyTree],
    batch_keys: tuple[tuple[str, ...], ...],
    tied: bool,
) -> model_lib.Model:
  """Returns a model of text; the halves of a block are separate layers.

  Args:
    shape: Dataclass of the options, passed to each function as `shape`.
    *functions: The embedding, both halves of a block, and the head.
    batch_keys: Entries of the microbatch read by the embedding, the first
      halves and the head.
    tied: Whether the head shares the parameter `wte` of the embedding.
  """
  embed, attention, mlp, head = functions
  embed_keys, attention_keys, head_keys = batch_keys
  ties = (layer_lib.Tie("wte", "embed", "wte"),) if tied else ()
  layers = [linen.make_layer("embed", embed, embed_keys, shape=shape)]
  for block in (f"block_{i:02d}" for i in range(shape.num_blocks)):
    layers += [
        linen.make_layer(f"{block}.attention", attention, attention_keys, shape=shape),
        linen.make_layer(f"{block}.mlp", mlp, shape=shape),
    ]
  layers.append(linen.make_layer("head", head, head_keys, ties, shape=shape))
  options = dataclasses.asdict(shape)
  known = {k: v for k, v in options.items() if v is not None}
  sample = model_lib.text_sample(shape.sequence_length)
  return model_lib.Model(name, tuple(layers), {"name": name, **known}, sample)


def make_decoder(
    name: str,
    shape: Any,
    *functions: Callable[..., base.PyTree],
    embed_reads_documents: bool = False,
) -> model_lib.Model:
  """Returns a model that predicts the next token; arguments as of `make_model`.

  With `shape.documents` each attention reads "documents" of the microbatch, and
  so does the embedding if its positions depend on them.
  """
  keys = ("documents",) if shape.documents else ()
  embed_keys = ("inputs", *keys) if embed_reads_documents else ("inputs",)
  model = make_model(
      name, shape, *functions, batch_keys=(embed_keys, keys, ("targets",)), tied=shape.tied
  )
  sample = dict(model.sample) | {key: model.sample["inputs"] for key in keys}
  return dataclasses.replace(model, sample=sample)


def dense(features: int, name: str, dtype: jax.typing.DTypeLike, *, bias: bool = True) -> nn.Dense:
  """Returns a flax layer that is a matrix product, with float32 weights."""
  return nn.Dense(features, use_bias=bias, dtype=dtype, kernel_init=NORMAL, name=name)


def embed_tokens(call: linen.Call, shape: Any, batch: layer_lib.Batch) -> jax.Array:
  """Returns the embeddings of the tokens, rows of `wte`, float32 [S, L, D].

  Raises `ValueError` unless each example has `sequence_length` tokens.
  """
  token_SL = batch["inputs"]
  if token_SL.ndim != 2 or token_SL.shape[1] != shape.sequence_length:
    raise ValueError(
        f"The model has sequence_length={shape.sequence_length}, but 'inputs' "
        f"of the batch has shape {token_SL.shape}."
    )
  return call.param("wte", NORMAL, num_rows(shape), shape.width)[token_SL]


def num_rows(shape: Any) -> int:
  """Returns the rows of embedding and head, padding included."""
  multiple = getattr(shape, "vocab_multiple", None) or 1
  return -(-shape.vocab_size // multiple) * multiple


def predict_tokens(
    call: linen.Call, shape: Any, normed_SLD: jax.Array, target_SL: jax.Array
) -> layer_lib.Loss:
  """Returns the loss of a projection to the vocabulary, by `wte` if tied."""
  if shape.tied:
    weight = call.param("wte", NORMAL, num_rows(shape), shape.width)
  else:
    weight = call.param("weight", NORMAL, shape.width, num_rows(shape))
  return losses.token_loss(
      normed_SLD,
      weight,
      target_SL,
      vocab_first=shape.tied,
      chunk=shape.loss_chunk,
      num_tokens=shape.vocab_size,
  )
