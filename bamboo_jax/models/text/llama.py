"""Llama 3 and Qwen 3: decoders with rotary positions and grouped queries.

Dubey et al., The Llama 3 Herd of Models, 2024; Yang et al., Qwen3 Technical
Report, 2025. Both are one architecture with other sizes; Qwen 3 normalises each
query and key. Parameters have the names of `transformers`; they are float32,
`dtype` is that of activations and products.

Dimension key:
  S: examples per microbatch
  L: sequence length, tokens
  H: heads of queries; fewer of keys and values
  K: width of a head
  D: model width
"""

from collections.abc import Mapping
import dataclasses
import functools
import math
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import layer as layer_lib, linen, model as model_lib, shape as shape_lib
from bamboo_jax.models.text import attention, cudnn, transformer

Array = jax.Array
Batch = layer_lib.Batch
_ROPE_POSITIONS = 8192  # Context of Llama 3 before `rope_factor`.


@dataclasses.dataclass(frozen=True)
class LlamaShape(transformer.DecoderShape):
  """The options of a model; by default attention is cuDNN's on GPUs where it can, else "xla".

  Attributes:
    num_kv_heads: Heads of keys and values; each serves `num_heads /
      num_kv_heads` query heads.
    hidden_width: Width of the hidden layer of the MLP.
    positions: Maximum `sequence_length`.
    rope_factor: Divisor of low rotary frequencies; 1 for none.
    tied: Whether the head shares the weights of the embedding.
    qk_norm: Whether queries and keys are normalised.
  """

  num_blocks: int
  width: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  hidden_width: int
  vocab_size: int
  positions: int
  rope_theta: float
  tied: bool
  rope_factor: float = 1.0
  qk_norm: bool = False
  norm_epsilon: float = 1e-5
  sequence_length: int = 2048
  products: ClassVar[transformer.Products] = transformer.LLAMA

  def __post_init__(self) -> None:
    super().__post_init__()
    shape_lib.check_multiple(self, "num_heads", "num_kv_heads")
    if self.head_width % 2:
      raise ValueError(f"head_width must be even, got {self.head_width}.")


# Of blocks, width, heads, heads of keys and values, their width, hidden width.
_llama = functools.partial(
    LlamaShape, vocab_size=128_256, positions=131_072, rope_theta=5e5, tied=True, rope_factor=32.0
)
_qwen = functools.partial(
    LlamaShape,
    vocab_size=151_936,
    positions=40_960,
    rope_theta=1e6,
    tied=True,
    qk_norm=True,
    norm_epsilon=1e-6,
)
_TINY = LlamaShape(2, 64, 4, 2, 16, 128, 256, 128, 1e4, True, sequence_length=32)

LLAMA_VARIANTS: Mapping[str, LlamaShape] = {
    "tiny": dataclasses.replace(_TINY, rope_factor=8.0),
    "3.2_1b": _llama(16, 2048, 32, 8, 64, 8192),
    "3.2_3b": _llama(28, 3072, 24, 8, 128, 8192),
    "3_8b": _llama(*(32, 4096, 32, 8, 128, 14_336), positions=8192, tied=False, rope_factor=1.0),
    "3.1_8b": _llama(*(32, 4096, 32, 8, 128, 14_336), tied=False, rope_factor=8.0),
}
QWEN_VARIANTS: Mapping[str, LlamaShape] = {
    "tiny": dataclasses.replace(_TINY, qk_norm=True, norm_epsilon=1e-6),
    "3_0.6b": _qwen(28, 1024, 16, 8, 128, 3072),
    "3_1.7b": _qwen(28, 2048, 16, 8, 128, 6144),
    "3_4b": _qwen(36, 2560, 32, 8, 128, 9728),
    "3_8b": _qwen(36, 4096, 32, 8, 128, 12_288, tied=False),
}


def make_model(name: str, shape: LlamaShape) -> model_lib.Model:
  """Returns a Llama or a Qwen; its microbatches are those of GPT-2."""
  return transformer.make_decoder(name, shape, _embed, _attention, _mlp, _head)


def _embed(call: linen.Call, inputs: None, batch: Batch, *, shape: LlamaShape) -> Array:
  return transformer.embed_tokens(call, shape, batch).astype(shape.dtype)


def _attention(call: linen.Call, h_SLD: Array, batch: Batch, *, shape: LlamaShape) -> Array:
  """The first half of a block: norm, causal self-attention, residual."""
  normed_SLD = _norm(shape, "norm")(h_SLD)

  def heads(name: str, count: int) -> Array:
    x_SLE = _multiply(shape, name, normed_SLD, count * shape.head_width)
    return x_SLE.reshape(*x_SLE.shape[:2], count, shape.head_width)

  q_SLHK = heads("q_proj", shape.num_heads)
  k_SLGK = heads("k_proj", shape.num_kv_heads)
  v_SLGK = heads("v_proj", shape.num_kv_heads)
  if shape.qk_norm:
    q_SLHK = _norm(shape, "q_norm")(q_SLHK)
    k_SLGK = _norm(shape, "k_norm")(k_SLGK)
  document_SL = batch.get("documents")
  parts = (rotate(q_SLHK, shape, document_SL), rotate(k_SLGK, shape, document_SL), v_SLGK)
  by_cudnn = cudnn.supports(v_SLGK.dtype, v_SLGK.shape[1], shape.head_width)
  if by_cudnn and shape.attention is None and document_SL is None:
    read_SLHK = cudnn.attend(*parts)
    read_SLE = read_SLHK.reshape(*read_SLHK.shape[:2], -1)
  else:
    read_SLE = attention.attend_by(shape.attention or "xla", parts, document_SL)
  return h_SLD + _multiply(shape, "o_proj", read_SLE, shape.width)


def _mlp(call: linen.Call, h_SLD: Array, batch: Batch, *, shape: LlamaShape) -> Array:
  """The second half of a block: norm, SwiGLU, residual."""
  normed = _norm(shape, "norm")(h_SLD)
  gate = nn.silu(_multiply(shape, "gate_proj", normed, shape.hidden_width))
  up = _multiply(shape, "up_proj", normed, shape.hidden_width)
  return h_SLD + _multiply(shape, "down_proj", gate * up, shape.width)


def _head(call: linen.Call, h_SLD: Array, batch: Batch, *, shape: LlamaShape) -> layer_lib.Loss:
  """Final norm, projection to the vocabulary, cross-entropy."""
  normed_SLD = _norm(shape, "norm")(h_SLD)
  return transformer.predict_tokens(call, shape, normed_SLD, batch["targets"])


def rotate(x_SLHK: Array, shape: LlamaShape, document_SL: Array | None = None) -> Array:
  """Returns queries or keys with rotary positions, in the input's dtype.

  With `document_SL` positions begin with 0 at each document.

  Elements k and k + K / 2 of a head are rotated by an angle proportional to the
  position (Su et al., RoFormer, 2021).
  """
  speed_K = jnp.asarray(rotation_speeds(shape), jnp.float32)
  if document_SL is None:
    place_L = jnp.arange(x_SLHK.shape[1])
  else:
    place_L = attention.restart(document_SL)  # [S, L].
  angle_LK = place_L[..., None] * speed_K
  cos_LHK = jnp.cos(angle_LK)[..., None, :]
  sin_LHK = jnp.sin(angle_LK)[..., None, :]
  first, second = jnp.split(x_SLHK.astype(jnp.float32), 2, axis=-1)
  turned = (first * cos_LHK - second * sin_LHK, second * cos_LHK + first * sin_LHK)
  return jnp.concatenate(turned, axis=-1).astype(x_SLHK.dtype)


def rotation_speeds(shape: LlamaShape) -> np.ndarray:
  """Returns radians per position, [K / 2].

  With a `rope_factor`, frequencies that turn less than once within the context
  of Llama 3 are divided by it; those that turn more than four times are
  unchanged.
  """
  speeds = shape.rope_theta ** -(np.arange(0, shape.head_width, 2) / shape.head_width)
  turns = _ROPE_POSITIONS * speeds / (2 * math.pi)
  kept = np.clip((turns - 1) / 3, 0, 1)
  return speeds * (kept + (1 - kept) / shape.rope_factor)


def _norm(shape: LlamaShape, name: str) -> nn.RMSNorm:
  return nn.RMSNorm(epsilon=shape.norm_epsilon, dtype=shape.dtype, name=name)


def _multiply(shape: LlamaShape, name: str, x: Array, features: int) -> Array:
  dense = transformer.dense(features, name, shape.dtype, bias=False)
  return transformer.adapt(shape, name, lambda: x, dense(x))
