"""Models by name."""

from collections.abc import Callable, Collection, Mapping
import types
from typing import Any

from bamboo_jax import base
from bamboo_jax.models import gpt2
from bamboo_jax.models import mlp_bn
from bamboo_jax.models import model as model_lib

MODELS: Mapping[str, Callable[..., model_lib.Model]] = types.MappingProxyType(
    {
        "gpt2": gpt2.make_gpt2,
        "mlp_bn": mlp_bn.make_mlp_bn,
    }
)

# What the option `variant` of a model can be; `launch.models` lists them.
VARIANTS: Mapping[str, Collection[str]] = types.MappingProxyType(
    {
        "gpt2": gpt2.VARIANTS,
    }
)


def make_model(name: str, **options: Any) -> model_lib.Model:
  """Returns a model; `ValueError` for unknown names or impossible options."""
  if name not in MODELS:
    raise ValueError(base.suggest(name, MODELS, what="model"))
  base.check_options(MODELS[name], options, what=f"model {name!r}")
  return MODELS[name](**options)
