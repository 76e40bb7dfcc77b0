"""BERT: an encoder that is trained on masked tokens and on pairs of texts.

Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers, 2019.
Every stage reads the padding mask and the segments from the microbatch, so they
are not sent. Parameters are float32, `dtype` is that of activations and
products.

Dimension key:

  S: examples per microbatch
  L: sequence length, tokens
  M: masked tokens of an example
  D: model width
"""

from collections.abc import Mapping
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from bamboo_jax.models import layer as layer_lib, linen, model as model_lib, shape as shape_lib
from bamboo_jax.models.text import attention, transformer

Array = jax.Array
Batch = layer_lib.Batch
_EXPANSION = 4  # Hidden width of an MLP, in model widths.


@dataclasses.dataclass(frozen=True)
class BertShape:
  """The options of a model.

  Attributes:
    num_masked: Maximum number of masked tokens of an example.
    positions: Maximum `sequence_length`.
    dropout_rate: Rate for embeddings, attention probabilities, and the output
      of each half of a block.
    dtype: "float32" or "bfloat16".
    documents: As of `transformer.DecoderShape`; only masked tokens are learnt then.
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
  documents: bool | None = None

  def __post_init__(self) -> None:
    shape_lib.check(self)
    shape_lib.check_multiple(self, "width", "num_heads")


VARIANTS: Mapping[str, BertShape] = {
    "tiny": BertShape(2, 64, 4, 32, 5, 260, 64),
    "base": BertShape(12, 768, 12),
    "large": BertShape(24, 1024, 16),  # 340M, as the paper says.
}


def make_model(name: str, shape: BertShape) -> model_lib.Model:
  """Returns a BERT with its two heads; `data.masked` makes its microbatches.

  The entries are int32: "inputs" [S, L], "segments" [S, L] (0 or 1), "is_text"
  [S, L] (0 for padding), "places" [S, M] (positions of masked tokens),
  "targets" [S, M] (the original tokens; -1 for unused entries), "is_random" [S]
  (1 if the second segment does not follow the first).

  With `shape.documents` a sample is packed documents, "documents" [S, L] takes
  the place of "is_text", positions begin with 0 at each document, and there are
  no pairs: "is_random" is not read.
  """
  keys = ("documents",) if shape.documents else ()
  pairs = () if keys else ("is_random",)
  texts, masks = ("inputs", "segments", *(keys or ("is_text",))), ("places", "targets")
  return transformer.make_model(
      *(name, shape, _embed, _attention, _mlp, _head),
      batch_keys=(("inputs", "segments", *keys), keys or ("is_text",), (*masks, *pairs)),
      sample={
          **dict.fromkeys(texts, (shape.sequence_length,)),
          **dict.fromkeys(masks, (shape.num_masked,)),
          **dict.fromkeys(pairs, ()),
      },
      tied=True,
  )


def _embed(call: linen.Call, inputs: None, batch: Batch, *, shape: BertShape) -> Array:
  """Adds the embeddings of tokens, positions and segments; norm; [S, L, D]."""
  wte_SLD = transformer.embed_tokens(call, shape, batch)
  wpe_PD = call.param("wpe", transformer.NORMAL, shape.positions, shape.width)
  wse_2D = call.param("wse", transformer.NORMAL, 2, shape.width)
  if (document_SL := batch.get("documents")) is None:
    h_SLD = wte_SLD + wpe_PD[: shape.sequence_length]
  else:
    h_SLD = wte_SLD + wpe_PD[attention.restart(document_SL)]
  h_SLD = _norm("norm", shape.dtype)(h_SLD + wse_2D[batch["segments"]])
  return call.drop(h_SLD, shape.dropout_rate)


def _attention(call: linen.Call, h_SLD: Array, batch: Batch, *, shape: BertShape) -> Array:
  """The first half of a block: self-attention, residual, norm."""
  rate, width = shape.dropout_rate, shape.width
  document_SL = batch.get("documents")
  read_SM = batch["is_text"] if document_SL is None else document_SL >= 0
  read_SLD = attention.attend(
      transformer.dense(3 * width, "qkv", h_SLD.dtype)(h_SLD),
      call.key(rate),
      num_heads=shape.num_heads,
      dropout_rate=rate,
      read_SM=read_SM,
      document_SL=document_SL,
  )
  added_SLD = transformer.dense(width, "out", h_SLD.dtype)(read_SLD)
  return _norm("norm", h_SLD.dtype)(h_SLD + call.drop(added_SLD, rate))


def _mlp(call: linen.Call, h_SLD: Array, batch: Batch, *, shape: BertShape) -> Array:
  """The second half of a block: two products around GELU, residual, norm."""
  rate, width, dtype = shape.dropout_rate, shape.width, h_SLD.dtype
  up = transformer.dense(_EXPANSION * width, "up", dtype)(h_SLD)
  hidden = nn.gelu(up, approximate=False)
  added_SLD = transformer.dense(width, "down", dtype)(hidden)
  return _norm("norm", dtype)(h_SLD + call.drop(added_SLD, rate))


def _head(call: linen.Call, h_SLD: Array, batch: Batch, *, shape: BertShape) -> layer_lib.Loss:
  """Predicts the masked tokens, and whether the second segment follows.

  The weight is the number of masked tokens. As in the paper the loss is the
  mean over masked tokens plus the mean over examples, for the microbatch.
  """
  width, dtype = shape.width, h_SLD.dtype
  wte_VD = call.param("wte", transformer.NORMAL, shape.vocab_size, width)
  bias_V = call.param("bias", nn.initializers.zeros, shape.vocab_size)
  h_SMD = jnp.take_along_axis(h_SLD, batch["places"][..., None], axis=1)
  h_SMD = transformer.dense(width, "transform", dtype)(h_SMD)
  h_SMD = _norm("norm", dtype)(nn.gelu(h_SMD, approximate=False))
  logits_SMV = bias_V + jnp.einsum(
      "smd,vd->smv", h_SMD, wte_VD.astype(h_SMD.dtype), preferred_element_type=jnp.float32
  )
  pooled_SD = nn.tanh(transformer.dense(width, "pooler", dtype)(h_SLD[:, 0]))
  logits_S2 = transformer.dense(2, "pair", dtype)(pooled_SD)
  counts_SM = batch["targets"] >= 0
  weight = counts_SM.sum(dtype=jnp.float32)
  cross_entropy = optax.softmax_cross_entropy_with_integer_labels
  token_SM = cross_entropy(logits_SMV, jnp.maximum(batch["targets"], 0))
  total = jnp.where(counts_SM, token_SM, 0).sum()
  if not shape.documents:
    pair_S = cross_entropy(logits_S2.astype(jnp.float32), batch["is_random"])
    total += weight * pair_S.mean()
  return layer_lib.Loss(total=total, weight=weight)


def _norm(name: str, dtype: jax.typing.DTypeLike) -> nn.LayerNorm:
  return nn.LayerNorm(epsilon=1e-12, use_fast_variance=False, dtype=dtype, name=name)
