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

import flax.linen as nn
import jax

from bamboo_jax.models import attention
from bamboo_jax.models import dense
from bamboo_jax.models import dropout
from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models import linen
from bamboo_jax.models import losses
from bamboo_jax.models import model as model_lib
from bamboo_jax.models import shape as shape_lib

_INIT_STD = 0.02
_EXPANSION = 4  # Width of the hidden layer of an MLP, in model widths.


@dataclasses.dataclass(frozen=True)
class Size:
  """How large a model is; all positive.

  `positions` is the number of learned positions, at least `sequence_length`;
  None if they are equal.
  """

  num_blocks: int
  width: int
  num_heads: int
  sequence_length: int
  vocab_size: int
  positions: int | None = None

  def __post_init__(self) -> None:
    shape_lib.check(self)
    shape_lib.check_multiple(self, "width", "num_heads")


VARIANTS: Mapping[str, Size] = types.MappingProxyType(
    {
        "tiny": Size(2, 64, 4, 32, 256),
        "small": Size(12, 768, 12, 1024, 50257),
        "medium": Size(24, 1024, 16, 1024, 50257),
        "large": Size(36, 1280, 20, 1024, 50257),
        "xl": Size(48, 1600, 25, 1024, 50257),
        # The shapes of GPT-3 (Brown et al., 2020, table 2.1).
        "gpt3_medium": Size(24, 1024, 16, 2048, 50257),
        "gpt3_2.7b": Size(32, 2560, 32, 2048, 50257),
        "gpt3_6.7b": Size(32, 4096, 32, 2048, 50257),
    }
)


def make_gpt2(
    *,
    variant: str = "small",
    num_blocks: int | None = None,
    width: int | None = None,
    num_heads: int | None = None,
    sequence_length: int | None = None,
    vocab_size: int | None = None,
    positions: int | None = None,
    dtype: str = "float32",
    dropout_rate: float = 0.1,
    attention_dropout_rate: float | None = None,
    tied: bool = True,
    attention_bias: bool = True,
) -> model_lib.Model:
  """Returns a GPT-2; a microbatch is "inputs" and "targets", integers [S, L].

  Args:
    variant: A key of `VARIANTS`; sets what the next six arguments leave at
      None.
    dtype: "float32" or "bfloat16": of activations and products. Parameters,
      norms, softmax and loss are float32 in any case.
    dropout_rate: Of embeddings and of what each half of a block adds.
    attention_dropout_rate: Of attention probabilities; None: `dropout_rate`.
    attention_bias: Whether the two products of attention have a bias.
  """
  overrides = {
      "num_blocks": num_blocks,
      "width": width,
      "num_heads": num_heads,
      "sequence_length": sequence_length,
      "vocab_size": vocab_size,
      "positions": positions,
  }
  size = shape_lib.choose(VARIANTS, variant, overrides, model="gpt2")
  shape_lib.check_dtype(dtype)
  if attention_dropout_rate is None:
    attention_dropout_rate = dropout_rate
  dropout.check_rate(dropout_rate, name="dropout_rate")
  dropout.check_rate(attention_dropout_rate, name="attention_dropout_rate")
  embed = Embed(size=size, dtype=dtype, dropout_rate=dropout_rate)
  attend = Attention(
      num_heads=size.num_heads,
      num_blocks=size.num_blocks,
      bias=attention_bias,
      dropout_rate=dropout_rate,
      attention_dropout_rate=attention_dropout_rate,
  )
  mlp = Mlp(num_blocks=size.num_blocks, dropout_rate=dropout_rate)
  fingerprint = {
      "name": "gpt2",
      **{k: v for k, v in dataclasses.asdict(size).items() if v is not None},
      "dtype": dtype,
      "dropout_rate": float(dropout_rate),
      "attention_dropout_rate": float(attention_dropout_rate),
      "tied": tied,
      "attention_bias": attention_bias,
  }
  layers = [linen.LinenLayer("embed", embed, batch_keys=("inputs",))]
  for block in range(size.num_blocks):
    layers.append(linen.LinenLayer(f"block_{block:02d}.attention", attend))
    layers.append(linen.LinenLayer(f"block_{block:02d}.mlp", mlp))
  ties = (layer_lib.Tie("wte", "embed", "wte"),) if tied else ()
  head = Head(vocab_size=size.vocab_size, tied=tied)
  layers.append(linen.LinenLayer("head", head, ("targets",), ties))
  sample = model_lib.text_sample(size.sequence_length)
  return model_lib.Model("gpt2", tuple(layers), fingerprint, sample)


class Embed(nn.Module):
  """Adds the embeddings of tokens and of their positions."""

  size: Size
  dtype: str
  dropout_rate: float

  @nn.compact
  def __call__(
      self, inputs: None, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, L, D]."""
    size, token_SL = self.size, batch["inputs"]
    shape_lib.check_tokens(token_SL, size.sequence_length)
    normal = nn.initializers.normal(_INIT_STD)
    wte_VD = self.param("wte", normal, (size.vocab_size, size.width))
    positions = size.positions or size.sequence_length
    wpe_PD = self.param("wpe", normal, (positions, size.width))
    wpe_LD = wpe_PD[: size.sequence_length]
    h_SLD = (wte_VD[token_SL] + wpe_LD).astype(self.dtype)
    key = dropout.make_key(self, self.dropout_rate, train)
    return dropout.drop(h_SLD, key, rate=self.dropout_rate)


class Attention(nn.Module):
  """The first half of a block: norm, causal self-attention, residual."""

  num_heads: int
  num_blocks: int
  bias: bool
  dropout_rate: float
  attention_dropout_rate: float

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, L, D]."""
    width = inputs.shape[-1]
    scale, shift = _norm_params(self, width)
    in_weight, in_bias = _dense_params(
        self, "qkv", (width, 3 * width), bias=self.bias
    )
    out_weight, out_bias = _dense_params(
        self, "out", (width, width), bias=self.bias, depth=2 * self.num_blocks
    )
    qkv = dense.norm_dense(inputs, scale, shift, in_weight, in_bias)
    read = attention.attend(
        qkv,
        dropout.make_key(self, self.attention_dropout_rate, train),
        num_heads=self.num_heads,
        dropout_rate=self.attention_dropout_rate,
    )
    added = dense.dense(read, out_weight, out_bias)
    key = dropout.make_key(self, self.dropout_rate, train)
    return inputs + dropout.drop(added, key, rate=self.dropout_rate)


class Mlp(nn.Module):
  """The second half of a block: norm, two products around GELU, residual."""

  num_blocks: int
  dropout_rate: float

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, L, D]."""
    width = inputs.shape[-1]
    hidden = _EXPANSION * width
    scale, shift = _norm_params(self, width)
    in_weight, in_bias = _dense_params(self, "up", (width, hidden))
    out_weight, out_bias = _dense_params(
        self, "down", (width, hidden), axis_out=0, depth=2 * self.num_blocks
    )
    up = dense.norm_dense(inputs, scale, shift, in_weight, in_bias)
    added = dense.gelu_dense(up, out_weight, out_bias)
    key = dropout.make_key(self, self.dropout_rate, train)
    return inputs + dropout.drop(added, key, rate=self.dropout_rate)


class Head(nn.Module):
  """Final norm, projection to the vocabulary, cross-entropy."""

  vocab_size: int
  tied: bool

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
    width = inputs.shape[-1]
    scale, shift = _norm_params(self, width)
    normal = nn.initializers.normal(_INIT_STD)
    if self.tied:
      weight = self.param("wte", normal, (self.vocab_size, width))
    else:
      weight = self.param("weight", normal, (width, self.vocab_size))
    return losses.token_loss(
        dense.norm(inputs, scale, shift),
        weight,
        target_SL,
        vocab_first=self.tied,
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
