"""Models by name."""

from collections.abc import Callable, Collection, Mapping
import importlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.models import mlp_bn
from bamboo_jax.models import model as model_lib
from bamboo_jax.models import paced
from bamboo_jax.models.text import bert
from bamboo_jax.models.text import gnmt
from bamboo_jax.models.text import gpt2
from bamboo_jax.models.text import llama
from bamboo_jax.models.vision import convnet
from bamboo_jax.models.vision import resnet

MODELS: Mapping[str, Callable[..., model_lib.Model]] = {
    "alexnet": convnet.make_alexnet,
    "bert": bert.make_bert,
    "gnmt": gnmt.make_gnmt,
    "gpt2": gpt2.make_gpt2,
    "llama": llama.make_llama,
    "qwen": llama.make_qwen,
    "mlp_bn": mlp_bn.make_mlp_bn,
    "paced": paced.make_paced,
    "resnet": resnet.make_resnet,
    "vgg": convnet.make_vgg,
}

# What the option `variant` of a model can be; `launch.models` lists them.
VARIANTS: Mapping[str, Collection[str]] = {
    "alexnet": convnet.ALEXNET_VARIANTS,
    "bert": bert.VARIANTS,
    "gnmt": gnmt.VARIANTS,
    "gpt2": gpt2.VARIANTS,
    "llama": llama.LLAMA_VARIANTS,
    "qwen": llama.QWEN_VARIANTS,
    "resnet": resnet.VARIANTS,
    "vgg": convnet.VGG_VARIANTS,
}


def make_model(name: str, **options: Any) -> model_lib.Model:
  """Returns a model of the zoo, or what a function of yours returns.

  `name` is a key of `MODELS`, or "module:function", which is imported.

  Raises:
    ValueError: The name is unknown, or the options are impossible.
  """
  make = _find(name)
  base.check_options(make, options, what=f"model {name!r}")
  return make(**options)


def _find(name: str) -> Callable[..., model_lib.Model]:
  module, colon, function = name.partition(":")
  if not colon:
    if name not in MODELS:
      raise ValueError(base.suggest(name, MODELS, what="model"))
    return MODELS[name]
  try:
    return getattr(importlib.import_module(module), function)
  except (ImportError, AttributeError) as error:
    raise ValueError(f"There is no model {name!r}: {error}.") from error
