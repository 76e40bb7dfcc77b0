"""Models by name."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from bamboo_jax import base
from bamboo_jax.models import model as model_lib, paced, shape
from bamboo_jax.models.text import bert, gpt2, llama

# By name: variants, the default variant, and the function that makes a model.
_FAMILIES: Mapping[str, tuple[Mapping[str, Any], str, Callable[[str, Any], model_lib.Model]]] = {
    "bert": (bert.VARIANTS, "large", bert.make_model),
    "gpt2": (gpt2.VARIANTS, "small", gpt2.make_model),
    "llama": (llama.LLAMA_VARIANTS, "3.2_1b", llama.make_model),
    "qwen": (llama.QWEN_VARIANTS, "3_0.6b", llama.make_model),
}
MODELS = (*_FAMILIES, "paced")
_MOVED = {  # Names of before, and the functions.
    "alexnet": "convnet:make_alexnet",
    "gnmt": "gnmt:make_gnmt",
    "resnet": "resnet:make_resnet",
    "vgg": "convnet:make_vgg",
}

# The allowed values of the option `variant`; `bamboo plan --list` lists them.
VARIANTS: Mapping[str, Collection[str]] = {
    name: variants for name, (variants, *_) in _FAMILIES.items()
}


def make_model(name: str, **options: Any) -> model_lib.Model:
  """Returns a model of the zoo, or the result of the user's function.

  Args:
    name: One of `MODELS`, or "file.py:function", see `base.find_function`.
    **options: A `variant`, if the model has several, and options to change.

  Raises:
    ValueError: The name is unknown, or the options are impossible.
  """
  if name in _FAMILIES:
    variants, variant, make = _FAMILIES[name]
    variant = options.pop("variant", variant)
    return make(name, shape.choose(variants, variant, options, model=name))
  if name == "paced":
    function = paced.make_paced
  elif base.is_function_name(name):
    function = base.find_function(name, what="model")
  elif name in _MOVED:
    raise ValueError(
        f"The model {name!r} is now 'bamboo_jax.reproductions.paper_models.{_MOVED[name]}'."
    )
  else:
    raise ValueError(base.suggest(name, MODELS, what="model"))
  base.check_options(function, options, what=f"model {name!r}")
  model = function(**options)
  if not isinstance(model, model_lib.Model):
    raise ValueError(f"Model {name!r} must be a Model, as of `from_loss`, got {model!r}.")
  return model
