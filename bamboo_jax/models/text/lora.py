"""LoRA: products with frozen weights, plus trained products of low rank.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2022:

  y = x W + alpha / rank * (x A) B

A begins with random numbers and B with zeros, as in `peft`. Frozen weights have
no gradients and no slots, so a replica that holds them needs no upkeep: a step
sends it only the gradients of A and B.

Dimension key:
  T: any leading dimensions
  D: width of the input
"""

from collections.abc import Callable
import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import flax.linen as nn
import jax

from bamboo_jax import base
from bamboo_jax.models import model as model_lib

PREFIX = "lora_"  # Of names of parameters.
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


class LoraShape(Protocol):
  """The options of a model with adapters."""

  products: ClassVar[Products]

  @property
  def lora_rank(self) -> int | None:
    """Rank of each adapter; None: no adapters, all weights are trained."""

  @property
  def lora_alpha(self) -> float | None:
    """Adapters are multiplied by `lora_alpha / lora_rank`; None: by 1."""

  @property
  def lora_targets(self) -> str | None:
    """Those of `products` with adapters; None: the default ones."""

  @property
  def dtype(self) -> str:
    """Dtype of products."""


def find_targets(shape: LoraShape) -> tuple[str, ...]:
  """Returns the names of the products with an adapter."""
  if shape.lora_rank is None:
    return ()
  return tuple((shape.lora_targets or shape.products.default).split(","))


def check(shape: LoraShape) -> None:
  """Raises `ValueError` for options that are invalid or have no effect."""
  for name in ("lora_alpha", "lora_targets"):
    if shape.lora_rank is None and getattr(shape, name) is not None:
      raise ValueError(f"{name}={getattr(shape, name)!r} needs a lora_rank, but it is None.")
  if shape.lora_alpha is not None and not shape.lora_alpha > 0:
    raise ValueError(f"lora_alpha must be above 0, got {shape.lora_alpha}.")
  for target in find_targets(shape):
    names = shape.products.names
    if target not in names:
      raise ValueError(base.suggest(target, names, what="lora_targets"))


def adapt(shape: LoraShape, name: str, x_TD: Callable[[], jax.Array], y: jax.Array) -> jax.Array:
  """Returns the product `y` of `x_TD()` plus that of its adapter, if any."""
  rank = shape.lora_rank
  if rank is None or name not in find_targets(shape):
    return y

  def multiply(part: str, features: int, init: Any, x: jax.Array) -> jax.Array:
    return nn.Dense(
        features, use_bias=False, dtype=shape.dtype, kernel_init=init, name=f"{PREFIX}{part}_{name}"
    )(x)

  low = multiply("a", rank, _UNIFORM, x_TD())
  added = multiply("b", y.shape[-1], nn.initializers.zeros, low)
  return y + added * ((shape.lora_alpha or rank) / rank)


def freeze(model: model_lib.Model, shape: LoraShape) -> model_lib.Model:
  """Returns the model with only its adapters trained, if it has any."""
  if shape.lora_rank is None:
    return model
  layers = [dataclasses.replace(l, trained=PREFIX) for l in model.layers]
  return dataclasses.replace(model, layers=tuple(layers))
