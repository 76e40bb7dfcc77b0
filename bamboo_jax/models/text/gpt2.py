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
from typing import ClassVar

import flax.linen as nn
import jax

from bamboo_jax.models import layer as layer_lib, linen, model as model_lib, shape as shape_lib
from bamboo_jax.models.text import attention, dense, transformer

Array = jax.Array
Batch = layer_lib.Batch
_INIT_STD = 0.02
_EXPANSION = 4  # Hidden width of an MLP, in model widths.


@dataclasses.dataclass(frozen=True)
class Gpt2Shape(transformer.DecoderShape):
  """The options of a model.

  By default attention is the project's own kernel, and on GPUs cuDNN's for long sequences of
  bfloat16 without dropout.

  Attributes:
    positions: Number of learned positions; None: `sequence_length`.
    dropout_rate: Rate for embeddings and for the output of each half of a
      block.
    attention_dropout_rate: Rate for attention probabilities; None:
      `dropout_rate`.
    tied: Whether the head shares the weights of the embedding.
    attention_bias: Whether the two products of attention have a bias.
  """

  num_blocks: int
  width: int
  num_heads: int
  sequence_length: int
  vocab_size: int
  positions: int | None = None
  dropout_rate: float = 0.1
  attention_dropout_rate: float | None = None
  tied: bool = True
  attention_bias: bool = True
  products: ClassVar[transformer.Products] = transformer.GPT2

  def __post_init__(self) -> None:
    super().__post_init__()
    shape_lib.check_multiple(self, "width", "num_heads")

  @property
  def attention_rate(self) -> float:
    """Dropout rate of attention probabilities."""
    rate = self.attention_dropout_rate
    return self.dropout_rate if rate is None else rate


VARIANTS: Mapping[str, Gpt2Shape] = {
    "tiny": Gpt2Shape(2, 64, 4, 32, 256),
    "small": Gpt2Shape(12, 768, 12, 1024, 50257),
    "medium": Gpt2Shape(24, 1024, 16, 1024, 50257),
    "large": Gpt2Shape(36, 1280, 20, 1024, 50257),
    "xl": Gpt2Shape(48, 1600, 25, 1024, 50257),
    # The shapes of GPT-3 (Brown et al., 2020, table 2.1).
    "gpt3_medium": Gpt2Shape(24, 1024, 16, 2048, 50257),
    "gpt3_2.7b": Gpt2Shape(32, 2560, 32, 2048, 50257),
    "gpt3_6.7b": Gpt2Shape(32, 4096, 32, 2048, 50257),
}


def make_model(name: str, shape: Gpt2Shape) -> model_lib.Model:
  """Returns a GPT-2; a microbatch has "inputs" and "targets", each [S, L]."""
  shape = dataclasses.replace(
      shape,
      dropout_rate=float(shape.dropout_rate),
      attention_dropout_rate=float(shape.attention_rate),
  )
  functions = (_embed, _attention, _mlp, _head)
  return transformer.make_decoder(name, shape, *functions, embed_reads_documents=True)


def _embed(call: linen.Call, inputs: None, batch: Batch, *, shape: Gpt2Shape) -> Array:
  """Adds the embeddings of tokens and of their positions, [S, L, D]."""
  wte_SLD = transformer.embed_tokens(call, shape, batch)
  positions = shape.positions or shape.sequence_length
  wpe_PD = call.param("wpe", transformer.NORMAL, positions, shape.width)
  if shape.documents:
    wpe_LD = wpe_PD[attention.restart(batch["documents"])]
  else:
    wpe_LD = wpe_PD[: shape.sequence_length]
  h_SLD = (wte_SLD + wpe_LD).astype(shape.dtype)
  return call.drop(h_SLD, shape.dropout_rate)


def _attention(call: linen.Call, h_SLD: Array, batch: Batch, *, shape: Gpt2Shape) -> Array:
  """The first half of a block: norm, causal self-attention, residual."""
  bias, width = shape.attention_bias, shape.width
  norm = _norm_params(call, width)
  qkv = _dense_params(call, "qkv", (width, 3 * width), bias=bias)
  out = _dense_params(call, "out", (width, width), bias=bias, depth=2 * shape.num_blocks)
  normed = lambda: dense.norm(h_SLD, *norm)
  qkv_SLE = dense.norm_dense(h_SLD, *norm, *qkv)
  qkv_SLE = transformer.adapt(shape, "c_attn", normed, qkv_SLE)
  if shape.attention is None:
    read_SLD = attention.attend(
        qkv_SLE,
        call.key(shape.attention_rate),
        num_heads=shape.num_heads,
        dropout_rate=shape.attention_rate,
        document_SL=batch.get("documents"),
    )
  else:
    heads = attention.split_heads(qkv_SLE, shape.num_heads)
    read_SLD = attention.attend_by(shape.attention, heads, batch.get("documents"))
  added_SLD = dense.dense(read_SLD, *out)
  added_SLD = transformer.adapt(shape, "c_proj", lambda: read_SLD, added_SLD)
  return h_SLD + call.drop(added_SLD, shape.dropout_rate)


def _mlp(call: linen.Call, h_SLD: Array, batch: Batch, *, shape: Gpt2Shape) -> Array:
  """The second half of a block: norm, two products around GELU, residual."""
  sizes = (shape.width, _EXPANSION * shape.width)
  norm = _norm_params(call, shape.width)
  up = _dense_params(call, "up", sizes)
  down = _dense_params(call, "down", sizes, axis_out=0, depth=2 * shape.num_blocks)
  normed = lambda: dense.norm(h_SLD, *norm)
  hidden_SLE = dense.norm_dense(h_SLD, *norm, *up)
  hidden_SLE = transformer.adapt(shape, "c_fc", normed, hidden_SLE)
  added_SLD = dense.gelu_dense(hidden_SLE, *down)
  gelu = lambda: nn.gelu(hidden_SLE, approximate=True)
  added_SLD = transformer.adapt(shape, "c_proj", gelu, added_SLD)
  return h_SLD + call.drop(added_SLD, shape.dropout_rate)


def _head(call: linen.Call, h_SLD: Array, batch: Batch, *, shape: Gpt2Shape) -> layer_lib.Loss:
  """Final norm, projection to the vocabulary, cross-entropy."""
  target_SL = batch["targets"]
  if target_SL.shape != h_SLD.shape[:2]:
    raise ValueError(
        f"'targets' of the batch has shape {target_SL.shape}, but the model "
        f"is at {h_SLD.shape[:2]} (examples, sequence_length)."
    )
  normed_SLD = dense.norm(h_SLD, *_norm_params(call, shape.width))
  return transformer.predict_tokens(call, shape, normed_SLD, target_SL)


def _norm_params(call: linen.Call, width: int) -> tuple[Array, Array]:
  scale = call.param("norm_scale", nn.initializers.ones, width)
  return scale, call.param("norm_shift", nn.initializers.zeros, width)


def _dense_params(
    call: linen.Call,
    name: str,
    shape: tuple[int, int],
    *,
    axis_out: int = 1,
    bias: bool = True,
    depth: int = 1,
) -> tuple[Array, Array | None]:
  """Returns weight and bias; `depth`: products added to one residual stream."""
  normal = nn.initializers.normal(_INIT_STD / depth**0.5)
  weight = call.param(f"{name}_weight", normal, *shape)
  if not bias:
    return weight, None
  zeros = nn.initializers.zeros
  return weight, call.param(f"{name}_bias", zeros, shape[axis_out])
