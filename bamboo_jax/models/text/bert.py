"""BERT: an encoder that is trained on masked tokens and on pairs of texts.

Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers, 2019. The
mask of padding and the kinds of segments come from the microbatch on every
stage, so they need not travel. Parameters are float32, `dtype` is that of
activations and products.

Dimension key:
  S: examples per microbatch
  L: sequence length, tokens
  M: masked tokens of an example
  D: model width
"""

from collections.abc import Mapping
import dataclasses
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from bamboo_jax.models import dropout
from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models import model as model_lib
from bamboo_jax.models import shape as shape_lib
from bamboo_jax.models.text import attention
from bamboo_jax.models.text import transformer

_EXPANSION = 4  # Width of the hidden layer of an MLP, in model widths.


@dataclasses.dataclass(frozen=True)
class Shape:
  """The options of a model.

  Attributes:
    num_masked: Tokens of an example that are to be found, at most.
    positions: The longest `sequence_length`.
    dropout_rate: Of embeddings, of attention probabilities, and of what each
      half of a block adds.
    dtype: "float32" or "bfloat16".
  """

  num_blocks: int
  width: int
  num_heads: int
  sequence_length: int = 128
  num_masked: int = 20
  vocab_size: int = 30_522
  positions: int = 512
  dropout_rate: float = 0.1
  dtype: str = "float32"

  def __post_init__(self) -> None:
    shape_lib.check(self)
    shape_lib.check_multiple(self, "width", "num_heads")
    shape_lib.check_dtype(self.dtype)
    dropout.check_rate(self.dropout_rate, name="dropout_rate")


VARIANTS: Mapping[str, Shape] = types.MappingProxyType(
    {
        "tiny": Shape(2, 64, 4, 32, 5, 260, 64),
        "base": Shape(12, 768, 12),
        "large": Shape(24, 1024, 16),  # 340M, as the paper says.
    }
)


def make_bert(*, variant: str = "large", **options: Any) -> model_lib.Model:
  """Returns a BERT with its two heads; `data.masked` makes its microbatches.

  These are, int32: "inputs" [S, L], "segments" [S, L] (0 or 1), "is_text"
  [S, L] (0 where padded), "places" [S, M] of masked tokens, "targets" [S, M]
  (what stood there; -1 if fewer are masked), "is_random" [S] (1 if the second
  segment does not follow the first).

  Args:
    variant: A key of `VARIANTS`.
    **options: Fields of `Shape`, instead of those of the variant.
  """
  shape = shape_lib.choose(VARIANTS, variant, options, model="bert")
  layers = transformer.make_layers(
      embed=Embed(shape),
      attention=Attention(shape),
      mlp=Mlp(shape),
      head=Head(shape),
      num_blocks=shape.num_blocks,
      tied=True,
      embed_keys=("inputs", "segments"),
      attention_keys=("is_text",),
      head_keys=("places", "targets", "is_random"),
  )
  fingerprint = {"name": "bert", **dataclasses.asdict(shape)}
  sizes = {
      "inputs": (shape.sequence_length,),
      "segments": (shape.sequence_length,),
      "is_text": (shape.sequence_length,),
      "places": (shape.num_masked,),
      "targets": (shape.num_masked,),
      "is_random": (),
  }
  sample = {k: jax.ShapeDtypeStruct(v, jnp.int32) for k, v in sizes.items()}
  return model_lib.Model("bert", layers, fingerprint, sample)


class Embed(nn.Module):
  """Adds the embeddings of tokens, positions and segments; norm."""

  shape: Shape

  @nn.compact
  def __call__(
      self, inputs: None, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, L, D]."""
    shape, token_SL = self.shape, batch["inputs"]
    shape_lib.check_tokens(token_SL, shape.sequence_length)
    wte_VD = self.param(
        "wte", transformer.NORMAL, (shape.vocab_size, shape.width)
    )
    wpe_PD = self.param(
        "wpe", transformer.NORMAL, (shape.positions, shape.width)
    )
    wse_2D = self.param("wse", transformer.NORMAL, (2, shape.width))
    h_SLD = wte_VD[token_SL] + wpe_PD[: shape.sequence_length]
    h_SLD = _norm("norm", shape.dtype)(h_SLD + wse_2D[batch["segments"]])
    return dropout.drop_in(self, h_SLD, shape.dropout_rate, train=train)


class Attention(nn.Module):
  """The first half of a block: self-attention, residual, norm."""

  shape: Shape

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, L, D]."""
    rate, width = self.shape.dropout_rate, self.shape.width
    read = attention.attend(
        transformer.dense(3 * width, "qkv", inputs.dtype)(inputs),
        dropout.make_key(self, rate, train),
        num_heads=self.shape.num_heads,
        dropout_rate=rate,
        read_SM=batch["is_text"],
    )
    added = transformer.dense(width, "out", inputs.dtype)(read)
    added = dropout.drop_in(self, added, rate, train=train)
    return _norm("norm", inputs.dtype)(inputs + added)


class Mlp(nn.Module):
  """The second half of a block: two products around GELU, residual, norm."""

  shape: Shape

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, L, D]."""
    rate, width = self.shape.dropout_rate, self.shape.width
    up = transformer.dense(_EXPANSION * width, "up", inputs.dtype)(inputs)
    hidden = nn.gelu(up, approximate=False)
    added = transformer.dense(width, "down", inputs.dtype)(hidden)
    added = dropout.drop_in(self, added, rate, train=train)
    return _norm("norm", inputs.dtype)(inputs + added)


class Head(nn.Module):
  """Finds the masked tokens, and whether the second segment follows."""

  shape: Shape

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> layer_lib.Loss:
    """Returns the loss, whose weight is the number of masked tokens.

    As in the paper it is the mean over masked tokens plus the mean over
    examples, for the microbatch.
    """
    width, vocab_size = self.shape.width, self.shape.vocab_size
    wte_VD = self.param("wte", transformer.NORMAL, (vocab_size, width))
    bias_V = self.param("bias", nn.initializers.zeros, (vocab_size,))
    h_SMD = jnp.take_along_axis(inputs, batch["places"][..., None], axis=1)
    h_SMD = transformer.dense(width, "transform", inputs.dtype)(h_SMD)
    h_SMD = _norm("norm", inputs.dtype)(nn.gelu(h_SMD, approximate=False))
    logits_SMV = bias_V + jnp.einsum(
        "smd,vd->smv",
        h_SMD,
        wte_VD.astype(h_SMD.dtype),
        preferred_element_type=jnp.float32,
    )
    pooled_SD = nn.tanh(
        transformer.dense(width, "pooler", inputs.dtype)(inputs[:, 0])
    )
    logits_S2 = transformer.dense(2, "pair", inputs.dtype)(pooled_SD)
    counts_SM = batch["targets"] >= 0
    weight = counts_SM.sum(dtype=jnp.float32)
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    token_SM = cross_entropy(logits_SMV, jnp.maximum(batch["targets"], 0))
    pair_S = cross_entropy(logits_S2.astype(jnp.float32), batch["is_random"])
    total = jnp.where(counts_SM, token_SM, 0).sum() + weight * pair_S.mean()
    return layer_lib.Loss(total=total, weight=weight)


def _norm(name: str, dtype: jax.typing.DTypeLike) -> nn.LayerNorm:
  return nn.LayerNorm(
      epsilon=1e-12, use_fast_variance=False, dtype=dtype, name=name
  )
