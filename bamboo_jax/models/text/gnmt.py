"""GNMT: translation with stacks of LSTM layers and attention.

Wu et al., Google's Neural Machine Translation System, 2016, as MLPerf trains
it: the first layer of the encoder reads in both directions, residuals begin
with the third layer of each stack, and the lowest layer of the decoder asks the
attention for a context (Bahdanau's, with a normalised vector) which all layers
above read too. So activations are tuples: the decoder's layers pass the context
on to the last. Token 0 ends a sentence and fills up what is behind it.

With V tokens, width D and n layers in each stack (n >= 2) it has

  2 V D                       embeddings of source and target, V D if `tied`
  + 2 L(D) + L(2 D)           encoder: both directions, the layer above them
  + (n - 2) L(D)              its other layers
  + L(D) + 2 D^2 + 2 D + 1    decoder: lowest layer, attention
  + (n - 1) L(2 D)            its other layers, which read the context
  + D V                       head

parameters, where L(I) = 4 (I D + D^2 + D) is an LSTM of I inputs with one bias.

Dimension key:
  S: examples per microbatch
  L: sequence length of the source, tokens
  T: sequence length of the target, tokens
  D: model width
  V: vocabulary
"""

from collections.abc import Mapping
import dataclasses
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import dropout
from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models import linen
from bamboo_jax.models import model as model_lib
from bamboo_jax.models import shape as shape_lib
from bamboo_jax.models.text import losses

END = 0
_FIRST_RESIDUAL = 2  # Layer of a stack, from 0.

Pair = tuple[jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Size:
  """The options of a model.

  Attributes:
    num_layers: Of each of the two stacks, at least 2.
    dropout_rate: Of the inputs of all LSTM layers.
    tied: Whether both languages share one embedding.
  """

  num_layers: int
  width: int
  sequence_length: int
  vocab_size: int
  dropout_rate: float = 0.2
  tied: bool = True

  def __post_init__(self) -> None:
    shape_lib.check(self)
    dropout.check_rate(self.dropout_rate, name="dropout_rate")
    if self.num_layers < 2:
      raise ValueError(f"num_layers must be at least 2, got {self.num_layers}.")


VARIANTS: Mapping[str, Size] = types.MappingProxyType(
    {
        "tiny": Size(2, 32, 16, 256),
        "8": Size(4, 1024, 50, 32_000),
        "16": Size(8, 1024, 50, 32_000),
    }
)


def make_gnmt(*, variant: str = "16", **options: Any) -> model_lib.Model:
  """Returns a GNMT; a microbatch is "source", "inputs", "targets", see `data`.

  `variant` is a key of `VARIANTS`, `options` are fields of `Size` to change.
  """
  size = shape_lib.choose(VARIANTS, variant, options, model="gnmt")
  rate = size.dropout_rate
  embed = Embed("source", size.vocab_size, size.width)
  layers = [linen.LinenLayer("encoder_embed", embed, ("source",))]
  for index in range(size.num_layers):
    module = Encoder(size.width, index == 0, index >= _FIRST_RESIDUAL, rate)
    name = f"encoder_{index:02d}"
    layers.append(linen.LinenLayer(name, module, ("source",)))
  tie = layer_lib.Tie("embedding", "encoder_embed", "embedding")
  embed = Embed("inputs", size.vocab_size, size.width)
  layers.append(
      linen.LinenLayer("decoder_embed", embed, ("inputs",), (tie,) * size.tied)
  )
  attend = Attend(rate)
  layers.append(linen.LinenLayer("decoder_00", attend, ("source",)))
  for index in range(1, size.num_layers):
    module = Decoder(index >= _FIRST_RESIDUAL, rate)
    layers.append(linen.LinenLayer(f"decoder_{index:02d}", module))
  head = Head(size.width, size.vocab_size)
  layers.append(linen.LinenLayer("head", head, ("targets",)))
  token_L = jax.ShapeDtypeStruct((size.sequence_length,), jnp.int32)
  return model_lib.Model(
      "gnmt",
      tuple(layers),
      {"name": "gnmt", **dataclasses.asdict(size)},
      dict.fromkeys(("source", "inputs", "targets"), token_L),
  )


def decode_greedily(
    model: model_lib.Model,
    variables: Mapping[str, layer_lib.Variables],
    source_SL: np.ndarray,
) -> np.ndarray:
  """Returns the likeliest next tokens, one after the other, int32 [S, L].

  Each sentence goes on with `END` once it has ended. The encoder runs once, the
  decoder over the whole sentence for each token.
  """
  first = model.layer_names.index("decoder_embed")
  last = len(model.layers) - 1
  params = {name: v.params for name, v in variables.items()}
  stats = {name: v.stats for name, v in variables.items()}
  run = lambda start, end, inputs, batch: model_lib.apply_range(
      model, start, end, params, stats, inputs, batch, key=None, train=False
  )[0]

  @jax.jit
  def next_token_SL(memory: jax.Array, batch: layer_lib.Batch) -> jax.Array:
    logits_SLV = model.layers[last].module.apply(
        {"params": params[model.layer_names[last]]},
        run(first, last, memory, batch),
        method="logits",
    )
    return logits_SLV.argmax(-1)

  memory = jax.jit(lambda batch: run(0, first, None, batch))(
      {"source": source_SL}
  )
  tokens_SL = np.full(source_SL.shape, END, np.int32)
  has_ended_S = np.zeros(len(source_SL), bool)
  for place in range(source_SL.shape[1]):
    inputs_SL = np.roll(tokens_SL, 1, axis=1)
    inputs_SL[:, 0] = END
    batch = {"source": source_SL, "inputs": inputs_SL}
    next_S = np.asarray(next_token_SL(memory, batch))[:, place]
    tokens_SL[:, place] = np.where(has_ended_S, END, next_S)
    has_ended_S |= next_S == END
  return tokens_SL


class Embed(nn.Module):
  """Looks up the embeddings of tokens, the entry `key` of the batch."""

  key: str
  vocab_size: int
  width: int

  @nn.compact
  def __call__(
      self, inputs: jax.Array | None, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array | Pair:
    """Returns float32 [S, L, D], after the encoder's output if there is one."""
    shape = (self.vocab_size, self.width)
    normal = nn.initializers.normal(self.width**-0.5)
    embedded = self.param("embedding", normal, shape)[batch[self.key]]
    return embedded if inputs is None else (inputs, embedded)


class Encoder(nn.Module):
  """A layer of the encoder, in both directions if it is the first."""

  width: int
  is_first: bool
  is_residual: bool
  dropout_rate: float

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns float32 [S, L, D], or [S, L, 2 D] if it is the first."""
    h_SLD = dropout.drop_in(self, inputs, self.dropout_rate, train=train)
    out_SLD = _lstm(self.width, "lstm")(h_SLD)
    if self.is_first:
      back = _lstm(self.width, "backwards", reverse=True, keep_order=True)
      back_SLD = back(h_SLD, seq_lengths=_lengths(batch["source"]))
      out_SLD = jnp.concatenate([out_SLD, back_SLD], axis=-1)
    return inputs + out_SLD if self.is_residual else out_SLD


class Attend(nn.Module):
  """The lowest layer of the decoder, which also makes the context."""

  dropout_rate: float

  @nn.compact
  def __call__(
      self, inputs: Pair, batch: layer_lib.Batch, *, train: bool
  ) -> Pair:
    """Returns context and activations, [S, T, D] each."""
    memory_SLD, embedded_STD = inputs
    width = memory_SLD.shape[-1]
    h_STD = _lstm(width, "lstm")(
        dropout.drop_in(self, embedded_STD, self.dropout_rate, train=train)
    )
    query_STD = nn.Dense(width, use_bias=False, name="query")(h_STD)
    key_SLD = nn.Dense(width, use_bias=False, name="key")(memory_SLD)
    bias_D = self.param("bias", nn.initializers.zeros, (width,))
    vector_D = self.param("vector", nn.initializers.normal(0.1), (width,))
    scale = self.param("scale", nn.initializers.constant(width**-0.5), ())
    mixed_STLD = jnp.tanh(query_STD[:, :, None] + key_SLD[:, None] + bias_D)
    vector_D = scale * vector_D / jnp.sqrt(jnp.sum(vector_D * vector_D))
    score_STL = mixed_STLD @ vector_D
    length = batch["source"].shape[1]
    is_there_SL = jnp.arange(length) < _lengths(batch["source"])[:, None]
    score_STL = jnp.where(is_there_SL[:, None], score_STL, -jnp.inf)
    weight_STL = jax.nn.softmax(score_STL)
    context_STD = jnp.einsum("stl,sld->std", weight_STL, memory_SLD)
    return context_STD, h_STD


class Decoder(nn.Module):
  """A layer of the decoder that reads the context and passes it on."""

  is_residual: bool
  dropout_rate: float

  @nn.compact
  def __call__(
      self, inputs: Pair, batch: layer_lib.Batch, *, train: bool
  ) -> Pair:
    """Returns context and activations, [S, T, D] each."""
    context_STD, h_STD = inputs
    dropped_STD = dropout.drop_in(self, h_STD, self.dropout_rate, train=train)
    both = jnp.concatenate([dropped_STD, context_STD], axis=-1)
    out_STD = _lstm(h_STD.shape[-1], "lstm")(both)
    return context_STD, h_STD + out_STD if self.is_residual else out_STD


class Head(nn.Module):
  """Projects to the vocabulary, cross-entropy; reads no context."""

  width: int
  vocab_size: int

  def setup(self) -> None:
    """Makes the projection."""
    normal = nn.initializers.normal(self.width**-0.5)
    shape = (self.width, self.vocab_size)
    self.weight = self.param("weight", normal, shape)

  def logits(self, inputs: Pair) -> jax.Array:
    """Returns float32 [S, T, V]."""
    return inputs[1] @ self.weight

  def __call__(
      self, inputs: Pair, batch: layer_lib.Batch, *, train: bool
  ) -> layer_lib.Loss:
    """Returns the loss of the microbatch."""
    return losses.token_loss(
        inputs[1], self.weight, batch["targets"], vocab_first=False
    )


def _lstm(width: int, name: str, **options: bool) -> nn.RNN:
  return nn.RNN(nn.OptimizedLSTMCell(width), name=name, **options)


def _lengths(token_SL: jax.Array) -> jax.Array:
  """Returns the number of tokens of each sentence, its end included, [S]."""
  has_ended_SL = (token_SL == END).cumsum(-1) - (token_SL == END) > 0
  return (~has_ended_SL).sum(-1)
