"""Parts shared by transformers: the options of decoders, the order of layers, products, the head.

With LoRA, products have frozen weights, plus trained products of low rank (Hu et al., LoRA:
Low-Rank Adaptation of Large Language Models, 2022):

  y = x W + alpha / rank * (x A) B

A begins with random numbers and B with zeros, as in `peft`. Frozen weights have
no gradients and no slots, so a replica that holds them needs no upkeep: a step
sends it only the gradients of A and B.

Dimension key:
  T: any leading dimensions
  S: examples per microbatch
  L: sequence length, tokens
  D: model width
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.models import layer as layer_lib, linen, model as model_lib, shape as shape_lib
from bamboo_jax.models.text import losses

Array = jax.Array
PREFIX = "lora_"  # Of names of parameters of adapters.
NORMAL = nn.initializers.normal(0.02)
_KERNELS = ("xla", "cudnn")  # Of `jax.nn.dot_product_attention`.
_UNIFORM = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Products(NamedTuple):
  """The products of a kind of model that can have adapters.

  Attributes:
    names: As in `transformers`.
    default: Those that have one by default, with commas.
  """

  names: tuple[str, ...]
  default: str


LLAMA = Products(
    (*("q_proj", "k_proj", "v_proj", "o_proj"), *("gate_proj", "up_proj", "down_proj")),
    "q_proj,v_proj",
)
GPT2 = Products(("c_attn", "c_proj", "c_fc"), "c_attn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderShape:
  """The options that all decoders have.

  Attributes:
    dtype: "float32" or "bfloat16", for activations and products. Parameters,
      norms, softmax and loss are always float32.
    attention: Kernel of `jax.nn.dot_product_attention`, "xla" or "cudnn" (on
      GPUs, without dropout); None: the model's default.
    loss_chunk: Vocabulary entries whose logits are in memory at a time, to save
      memory. None: all.
    vocab_multiple: The rows of embedding and head are padded to a multiple of
      this, as meshes need it. Rows beyond `vocab_size` count nothing and are
      not exported. None: no padding.
    documents: Whether attention and positions keep documents of a sample apart.
    lora_rank: Rank of each adapter; None: no adapters, all weights are trained.
    lora_alpha: Adapters are multiplied by `lora_alpha / lora_rank`; None: by 1.
    lora_targets: Those of `products` with adapters; None: the default ones.
  """

  dtype: str = "float32"
  attention: str | None = None
  loss_chunk: int | None = None
  vocab_multiple: int | None = None
  documents: bool | None = None
  lora_rank: int | None = None
  lora_alpha: float | None = None
  lora_targets: str | None = None
  products: ClassVar[Products]

  def __post_init__(self) -> None:
    shape_lib.check(self)
    if self.attention is not None and self.attention not in _KERNELS:
      raise ValueError(base.suggest(self.attention, _KERNELS, what="attention"))
    if self.attention and self.attention_rate:
      raise ValueError(
          f"attention={self.attention!r} does not support dropout of probabilities: "
          f"attention_dropout_rate must be 0, got {self.attention_rate}."
      )
    if self.attention == "cudnn" and self.dtype != "bfloat16":
      raise ValueError(f"attention='cudnn' needs dtype=bfloat16, got {self.dtype}.")
    for name in ("lora_alpha", "lora_targets"):
      if self.lora_rank is None and getattr(self, name) is not None:
        raise ValueError(f"{name}={getattr(self, name)!r} needs a lora_rank, but it is None.")
    if self.lora_alpha is not None and not self.lora_alpha > 0:
      raise ValueError(f"lora_alpha must be above 0, got {self.lora_alpha}.")
    for target in self.adapted:
      if target not in self.products.names:
        raise ValueError(base.suggest(target, self.products.names, what="lora_targets"))

  @property
  def attention_rate(self) -> float:
    """Dropout rate of attention probabilities."""
    return 0.0

  @property
  def adapted(self) -> tuple[str, ...]:
    """Names of the products with an adapter."""
    if self.lora_rank is None:
      return ()
    return tuple((self.lora_targets or self.products.default).split(","))


def make_model(
    name: str,
    shape: Any,
    *functions: Callable[..., base.PyTree],
    batch_keys: tuple[tuple[str, ...], ...],
    sample: Mapping[str, tuple[int, ...]],
    tied: bool,
) -> model_lib.Model:
  """Returns a model of text; the halves of a block are separate layers.

  Args:
    shape: Dataclass of the options, passed to each function as `shape`.
    *functions: The embedding, both halves of a block, and the head.
    batch_keys: Entries of the microbatch read by the embedding, the first
      halves and the head.
    sample: Shapes of the entries of a sample, int32.
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
  shapes = {key: jax.ShapeDtypeStruct(sizes, jnp.int32) for key, sizes in sample.items()}
  return model_lib.Model(name, tuple(layers), {"name": name, **known}, shapes)


def make_decoder(
    name: str,
    shape: Any,
    *functions: Callable[..., base.PyTree],
    embed_reads_documents: bool = False,
) -> model_lib.Model:
  """Returns a model that predicts the next token; arguments as of `make_model`.

  With `shape.documents` each attention reads "documents" of the microbatch, and
  so does the embedding if its positions depend on them. Of a model with adapters only
  these are trained.
  """
  keys = ("documents",) if shape.documents else ()
  embed_keys = ("inputs", *keys) if embed_reads_documents else ("inputs",)
  model = make_model(
      *(name, shape, *functions),
      batch_keys=(embed_keys, keys, ("targets",)),
      sample=dict.fromkeys(("inputs", "targets", *keys), (shape.sequence_length,)),
      tied=shape.tied,
  )
  if shape.lora_rank is None:
    return model
  layers = [dataclasses.replace(layer, trained=PREFIX) for layer in model.layers]
  return dataclasses.replace(model, layers=tuple(layers))


def adapt(shape: DecoderShape, name: str, x_TD: Callable[[], Array], y: Array) -> Array:
  """Returns the product `y` of `x_TD()` plus that of its adapter, if any."""
  rank = shape.lora_rank
  if rank is None or name not in shape.adapted:
    return y

  def multiply(part: str, features: int, init: Any, x: Array) -> Array:
    return nn.Dense(
        features, use_bias=False, dtype=shape.dtype, kernel_init=init, name=f"{PREFIX}{part}_{name}"
    )(x)

  low = multiply("a", rank, _UNIFORM, x_TD())
  added = multiply("b", y.shape[-1], nn.initializers.zeros, low)
  return y + added * ((shape.lora_alpha or rank) / rank)


def dense(features: int, name: str, dtype: jax.typing.DTypeLike, *, bias: bool = True) -> nn.Dense:
  """Returns a flax layer that is a matrix product, with float32 weights."""
  return nn.Dense(features, use_bias=bias, dtype=dtype, kernel_init=NORMAL, name=name)


def embed_tokens(call: linen.Call, shape: Any, batch: layer_lib.Batch) -> Array:
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
    call: linen.Call, shape: Any, normed_SLD: Array, target_SL: Array
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
