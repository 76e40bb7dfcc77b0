"""The sizes of a model: published variants, and constraints of all models."""

from collections.abc import Mapping
import dataclasses
from typing import Any, TypeVar

from bamboo_jax import base

_DTYPES = ("float32", "bfloat16")

Shape = TypeVar("Shape")  # A frozen dataclass of options.


def choose(
    variants: Mapping[str, Shape], variant: str, options: Mapping[str, Any], *, model: str
) -> Shape:
  """Returns a variant with some options changed; None keeps an option.

  Raises:
    ValueError: The variant or an option does not exist, or they do not fit.
  """
  if variant not in variants:
    raise ValueError(base.suggest(str(variant), variants, what=f"variant of {model}"))
  shape: Any = variants[variant]
  given = {k: v for k, v in options.items() if v is not None}
  complete = dataclasses.asdict(shape) | given
  base.check_options(type(shape), complete, what=f"model {model!r}", others=["variant"])
  return dataclasses.replace(shape, **given)


def check(shape: Any) -> None:
  """Raises `ValueError` for a size below one or sizes that do not fit.

  `shape` is a dataclass whose types have been checked, as by `choose`. Rates of
  dropout, a `dtype` of activations, a `sequence_length` and `positions` (None:
  equal) are checked if present.
  """
  for field in dataclasses.fields(shape):
    value = getattr(shape, field.name)
    is_count = field.type in (int, int | None) and value is not None
    if is_count and value < 1:
      raise ValueError(f"{field.name} must be a positive integer, got {value}.")
  for name in ("dropout_rate", "attention_dropout_rate"):
    rate = getattr(shape, name, None)
    if rate is not None and not 0 <= rate < 1:
      raise ValueError(f"{name} must be at least 0 and below 1, got {rate}.")
  dtype = getattr(shape, "dtype", _DTYPES[0])
  if dtype not in _DTYPES:
    raise ValueError(base.suggest(dtype, _DTYPES, what="dtype"))
  positions = getattr(shape, "positions", None)
  if positions and shape.sequence_length > positions:
    raise ValueError(
        f"sequence_length={shape.sequence_length} is longer than the model's "
        f"positions={positions}."
    )


def check_multiple(shape: Any, name: str, of: str) -> None:
  """Raises `ValueError` unless one size is a multiple of another."""
  if getattr(shape, name) % getattr(shape, of):
    raise ValueError(
        f"{name}={getattr(shape, name)} must be a multiple of " f"{of}={getattr(shape, of)}."
    )
