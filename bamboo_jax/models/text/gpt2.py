"""GPT-2: a decoder-only transformer with learned positions and pre-norm.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019. The
two halves of a block are layers of their own, so that partitions can be fine.
Parameters are float32; `dtype` is that of activations and products.

Dimension key:
  S: examples per microbatch
  L: sequence length, tokens
  D: model width
"""

from collections.abc import Mapping
import dataclasses
import types
from typing import Any

import flax.linen as nn
import jax

from bamboo_jax.models import dropout
from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models import model as model_lib
from bamboo_jax.models import shape as shape_lib
from bamboo_jax.models.text import attention
from bamboo_jax.models.text import dense
from bamboo_jax.models.text import losses
from bamboo_jax.models.text import transformer

_INIT_STD = 0.02
_EXPANSION = 4  # Width of the hidden layer of an MLP, in model widths.


@dataclasses.dataclass(frozen=True)
class Shape:
  """The options of a model.

  Attributes:
    positions: Number of learned positions; None: `sequence_length`.
    dtype: "float32" or "bfloat16": of activations and products. Parameters,
      norms, softmax and loss are float32 in any case.
    dropout_rate: Of embeddings and of what each half of a block adds.
    attention_dropout_rate: Of attention probabilities; None: `dropout_rate`.
    tied: Whether the head shares the weights of the embedding.
    attention_bias: Whether the two products of attention have a bias.
    attention: Kernel of `jax.nn.dot_product_attention`, "xla" or "cudnn" (on
      GPUs, no dropout there); None: ours.
    loss_chunk: Entries of the vocabulary whose logits are there at a time; for
      less memory. None: all.
  """

  num_blocks: int
  width: int
  num_heads: int
  sequence_length: int
  vocab_size: int
  positions: int | None = None
  dtype: str = "float32"
  dropout_rate: float = 0.1
  attention_dropout_rate: float | None = None
  tied: bool = True
  attention_bias: bool = True
  attention: str | None = None
  loss_chunk: int | None = None

  def __post_init__(self) -> None:
    shape_lib.check(self)
    shape_lib.check_multiple(self, "width", "num_heads")
    shape_lib.check_dtype(self.dtype)
    for name in ("dropout_rate", "attention_dropout_rate"):
      if getattr(self, name) is not None:
        dropout.check_rate(getattr(self, name), name=name)
    losses.check_chunk(self.loss_chunk)
    attention.check_implementation(
        self.attention, dtype=self.dtype, dropout_rate=self.attention_rate
    )

  @property
  def attention_rate(self) -> float:
    """Rate of dropout of attention probabilities."""
    rate = self.attention_dropout_rate
    return self.dropout_rate if rate is None else rate


VARIANTS: Mapping[str, Shape] = types.MappingProxyType(
    {
        "tiny": Shape(2, 64, 4, 32, 256),
        "small": Shape(12, 768, 12, 1024, 50257),
        "medium": Shape(24, 1024, 16, 1024, 50257),
        "large": Shape(36, 1280, 20, 1024, 50257),
        "xl": Shape(48, 1600, 25, 1024, 50257),
        # The shapes of GPT-3 (Brown et al., 2020, table 2.1).
        "gpt3_medium": Shape(24, 1024, 16, 2048, 50257),
        "gpt3_2.7b": Shape(32, 2560, 32, 2048, 50257),
        "gpt3_6.7b": Shape(32, 4096, 32, 2048, 50257),
    }
)


def make_gpt2(*, variant: str = "small", **options: Any) -> model_lib.Model:
  """Returns a GPT-2; a microbatch is "inputs" and "targets", integers [S, L].

  Args:
    variant: A key of `VARIANTS`.
    **options: Fields of `Shape`, instead of those of the variant.
  """
  shape = shape_lib.choose(VARIANTS, variant, options, model="gpt2")
  layers = transformer.make_layers(
      embed=Embed(shape),
      attention=Attention(shape),
      mlp=Mlp(shape),
      head=Head(shape),
      num_blocks=shape.num_blocks,
      tied=shape.tied,
  )
  sizes = dataclasses.asdict(shape)
  rates = {"attention_dropout_rate": float(shape.attention_rate)}
  rates["dropout_rate"] = float(shape.dropout_rate)
  known = {k: v for k, v in sizes.items() if v is not None}
  fingerprint = {"name": "gpt2", **known, **rates}
  sample = model_lib.text_sample(shape.sequence_length)
  return model_lib.Model("gpt2", layers, fingerprint, sample)


class Embed(nn.Module):
  """Adds the embeddings of tokens and of their positions."""

  shape: Shape

  @nn.compact
  def __call__(
      self, inputs: None, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, L, D]."""
    shape, token_SL = self.shape, batch["inputs"]
    shape_lib.check_tokens(token_SL, shape.sequence_length)
    normal = nn.initializers.normal(_INIT_STD)
    wte_VD = self.param("wte", normal, (shape.vocab_size, shape.width))
    positions = shape.positions or shape.sequence_length
    wpe_PD = self.param("wpe", normal, (positions, shape.width))
    wpe_LD = wpe_PD[: shape.sequence_length]
    h_SLD = (wte_VD[token_SL] + wpe_LD).astype(shape.dtype)
    return dropout.drop_in(self, h_SLD, shape.dropout_rate, train=train)


class Attention(nn.Module):
  """The first half of a block: norm, causal self-attention, residual."""

  shape: Shape

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, L, D]."""
    shape, width = self.shape, self.shape.width
    scale, shift = _norm_params(self, width)
    bias, depth = shape.attention_bias, 2 * shape.num_blocks
    in_weight, in_bias = _dense_params(
        self, "qkv", (width, 3 * width), bias=bias
    )
    out_weight, out_bias = _dense_params(
        self, "out", (width, width), bias=bias, depth=depth
    )
    qkv = dense.norm_dense(inputs, scale, shift, in_weight, in_bias)
    if shape.attention is None:
      read = attention.attend(
          qkv,
          dropout.make_key(self, shape.attention_rate, train),
          num_heads=shape.num_heads,
          dropout_rate=shape.attention_rate,
      )
    else:
      read = attention.attend_by(
          shape.attention, qkv, num_heads=shape.num_heads
      )
    added = dense.dense(read, out_weight, out_bias)
    return inputs + dropout.drop_in(
        self, added, shape.dropout_rate, train=train
    )


class Mlp(nn.Module):
  """The second half of a block: norm, two products around GELU, residual."""

  shape: Shape

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, L, D]."""
    shape, width = self.shape, self.shape.width
    hidden = _EXPANSION * width
    scale, shift = _norm_params(self, width)
    in_weight, in_bias = _dense_params(self, "up", (width, hidden))
    out_weight, out_bias = _dense_params(
        self, "down", (width, hidden), axis_out=0, depth=2 * shape.num_blocks
    )
    up = dense.norm_dense(inputs, scale, shift, in_weight, in_bias)
    added = dense.gelu_dense(up, out_weight, out_bias)
    return inputs + dropout.drop_in(
        self, added, shape.dropout_rate, train=train
    )


class Head(nn.Module):
  """Final norm, projection to the vocabulary, cross-entropy."""

  shape: Shape

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> layer_lib.Loss:
    """Returns the loss of the microbatch."""
    target_SL = batch["targets"]
    if target_SL.shape != inputs.shape[:2]:
      raise ValueError(
          f"'targets' of the batch has shape {target_SL.shape}, but the model "
          f"is at {inputs.shape[:2]} (examples, sequence_length)."
      )
    width, vocab_size = self.shape.width, self.shape.vocab_size
    scale, shift = _norm_params(self, width)
    normal = nn.initializers.normal(_INIT_STD)
    if self.shape.tied:
      weight = self.param("wte", normal, (vocab_size, width))
    else:
      weight = self.param("weight", normal, (width, vocab_size))
    return losses.token_loss(
        dense.norm(inputs, scale, shift),
        weight,
        target_SL,
        vocab_first=self.shape.tied,
        chunk=self.shape.loss_chunk,
    )


def _norm_params(module: nn.Module, width: int) -> tuple[jax.Array, jax.Array]:
  scale = module.param("norm_scale", nn.initializers.ones, (width,))
  shift = module.param("norm_shift", nn.initializers.zeros, (width,))
  return scale, shift


def _dense_params(
    module: nn.Module,
    name: str,
    shape: tuple[int, int],
    *,
    axis_out: int = 1,
    bias: bool = True,
    depth: int = 1,
) -> tuple[jax.Array, jax.Array | None]:
  """Returns weight and bias; `depth` such products add to one stream."""
  normal = nn.initializers.normal(_INIT_STD / depth**0.5)
  weight = module.param(f"{name}_weight", normal, shape)
  if not bias:
    return weight, None
  zeros = nn.initializers.zeros
  return weight, module.param(
      f"{name}_bias", zeros, shape[axis_out : axis_out + 1]
  )
