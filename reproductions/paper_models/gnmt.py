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

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bamboo_jax.models import layer as layer_lib, linen, model as model_lib, shape as shape_lib
from bamboo_jax.models.text import losses

END = 0
_FIRST_RESIDUAL = 2  # Index of a layer in its stack, from 0.

Pair = tuple[jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class GnmtSize:
  """The options of a model.

  Attributes:
    num_layers: Layers of each of the two stacks, at least 2.
    dropout_rate: Rate for the inputs of all LSTM layers.
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
    if self.num_layers < 2:
      raise ValueError(f"num_layers must be at least 2, got {self.num_layers}.")


VARIANTS: Mapping[str, GnmtSize] = {
    "tiny": GnmtSize(2, 32, 16, 256),
    "8": GnmtSize(4, 1024, 50, 32_000),
    "16": GnmtSize(8, 1024, 50, 32_000),
}


def make_gnmt(variant: str = "16", **options: Any) -> model_lib.Model:
  """Returns a GNMT; `options` are fields of `GnmtSize` to change.

  A microbatch has "source", "inputs" and "targets".
  """
  size = shape_lib.choose(VARIANTS, variant, options, model="gnmt")
  make = functools.partial(linen.make_layer, size=size)
  tie = layer_lib.Tie("embedding", "encoder_embed", "embedding")
  is_residual = [index >= _FIRST_RESIDUAL for index in range(size.num_layers)]
  layers = (
      make("encoder_embed", _embed, ("source",), key="source"),
      *(
          make(*(f"encoder_{i:02d}", _encoder, ("source",)), is_first=i == 0, is_residual=adds)
          for i, adds in enumerate(is_residual)
      ),
      make("decoder_embed", _embed, ("inputs",), (tie,) * size.tied, key="inputs"),
      make("decoder_00", _attend, ("source",)),
      *(
          make(f"decoder_{i:02d}", _decoder, is_residual=adds)
          for i, adds in enumerate(is_residual[1:], start=1)
      ),
      make("head", _head, ("targets",)),
  )
  token_L = jax.ShapeDtypeStruct((size.sequence_length,), jnp.int32)
  return model_lib.Model(
      "gnmt",
      layers,
      {"name": "gnmt", **dataclasses.asdict(size)},
      dict.fromkeys(("source", "inputs", "targets"), token_L),
  )


def _embed(
    call: linen.Call, inputs: jax.Array | None, batch: layer_lib.Batch, *, size: GnmtSize, key: str
) -> jax.Array | Pair:
  """Embeds the tokens `key` of the batch, float32 [S, L, D].

  If there is an output of the encoder, returns it with them.
  """
  normal = nn.initializers.normal(size.width**-0.5)
  embedded = call.param("embedding", normal, size.vocab_size, size.width)[batch[key]]
  return embedded if inputs is None else (inputs, embedded)


def _encoder(
    call: linen.Call,
    inputs: jax.Array,
    batch: layer_lib.Batch,
    *,
    size: GnmtSize,
    is_first: bool,
    is_residual: bool,
) -> jax.Array:
  """Returns float32 [S, L, D]; [S, L, 2 D] if first, for both directions."""
  h_SLD = call.drop(inputs, size.dropout_rate)
  out_SLD = _lstm(size.width, "lstm")(h_SLD)
  if is_first:
    back = _lstm(size.width, "backwards", reverse=True, keep_order=True)
    back_SLD = back(h_SLD, seq_lengths=_lengths(batch["source"]))
    out_SLD = jnp.concatenate([out_SLD, back_SLD], axis=-1)
  return inputs + out_SLD if is_residual else out_SLD


def _attend(call: linen.Call, inputs: Pair, batch: layer_lib.Batch, *, size: GnmtSize) -> Pair:
  """Runs the lowest decoder layer; returns context, activations [S, T, D]."""
  memory_SLD, embedded_STD = inputs
  width = size.width
  h_STD = _lstm(width, "lstm")(call.drop(embedded_STD, size.dropout_rate))
  query_STD = nn.Dense(width, use_bias=False, name="query")(h_STD)
  key_SLD = nn.Dense(width, use_bias=False, name="key")(memory_SLD)
  bias_D = call.param("bias", nn.initializers.zeros, width)
  vector_D = call.param("vector", nn.initializers.normal(0.1), width)
  scale = call.param("scale", nn.initializers.constant(width**-0.5))
  mixed_STLD = jnp.tanh(query_STD[:, :, None] + key_SLD[:, None] + bias_D)
  vector_D = scale * vector_D / jnp.sqrt(jnp.sum(vector_D * vector_D))
  score_STL = mixed_STLD @ vector_D
  length = batch["source"].shape[1]
  is_there_SL = jnp.arange(length) < _lengths(batch["source"])[:, None]
  score_STL = jnp.where(is_there_SL[:, None], score_STL, -jnp.inf)
  weight_STL = jax.nn.softmax(score_STL)
  context_STD = jnp.einsum("stl,sld->std", weight_STL, memory_SLD)
  return context_STD, h_STD


def _decoder(
    call: linen.Call, inputs: Pair, batch: layer_lib.Batch, *, size: GnmtSize, is_residual: bool
) -> Pair:
  """Runs a decoder layer; returns context and output, [S, T, D] each."""
  context_STD, h_STD = inputs
  dropped_STD = call.drop(h_STD, size.dropout_rate)
  both = jnp.concatenate([dropped_STD, context_STD], axis=-1)
  out_STD = _lstm(size.width, "lstm")(both)
  return context_STD, h_STD + out_STD if is_residual else out_STD


def _head(
    call: linen.Call, inputs: Pair, batch: layer_lib.Batch, *, size: GnmtSize
) -> layer_lib.Loss:
  """Projects to the vocabulary; cross-entropy. Ignores the context."""
  normal = nn.initializers.normal(size.width**-0.5)
  weight = call.param("weight", normal, size.width, size.vocab_size)
  return losses.token_loss(inputs[1], weight, batch["targets"], vocab_first=False)


def _lstm(width: int, name: str, **options: Any) -> Callable[..., jax.Array]:
  # Without `return_carry` it returns the outputs alone.
  rnn: Any = nn.RNN(nn.OptimizedLSTMCell(width), name=name, **options)
  return rnn


def _lengths(token_SL: jax.Array) -> jax.Array:
  """Returns the tokens of each sentence including its end token, [S]."""
  has_ended_SL = (token_SL == END).cumsum(-1) - (token_SL == END) > 0
  return (~has_ended_SL).sum(-1)


def translate(
    model: model_lib.Model, variables: Mapping[str, layer_lib.Variables], source_SL: jax.Array
) -> jax.Array:
  """Returns the targets, int32 [S, T]; 0 ends and pads each.

  `model` is made by `gnmt`, `variables` are those of all its layers, by name.
  Each token takes a pass of the whole decoder.
  """
  params = {name: jax.tree.map(jnp.asarray, v.params) for name, v in variables.items()}
  stats = {name: v.stats for name, v in variables.items()}
  run = functools.partial(model_lib.apply_range, params=params, stats=stats, key=None, train=False)
  batch = {"source": source_SL}
  decoder, head = map(model.layer_names.index, ("decoder_embed", "head"))
  memory_SLD, _ = run(model, 0, decoder, inputs=None, batch=batch)

  def extend(place: jax.Array, target_ST: jax.Array) -> jax.Array:
    inputs_ST = jnp.roll(target_ST, 1, axis=1).at[:, 0].set(END)
    (_, h_STD), _ = run(
        *(model, decoder, head), inputs=memory_SLD, batch={**batch, "inputs": inputs_ST}
    )
    logits_SV = h_STD[:, place] @ params["head"]["weight"]
    has_ended_S = (inputs_ST[:, place] == END) & (place > 0)
    token_S = jnp.where(has_ended_S, END, logits_SV.argmax(-1))
    return target_ST.at[:, place].set(token_S)

  (length,) = model.sample["inputs"].shape
  start_ST = jnp.zeros((len(source_SL), length), jnp.int32)
  return jax.lax.fori_loop(0, length, extend, start_ST)
