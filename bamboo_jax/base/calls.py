"""Packages that are functions, too: `bamboo_jax.train(...)` beside its modules.

A name of `bamboo_jax` is one object. So that both `bamboo_jax.train(config)`
and `from bamboo_jax.train import run` work, the module object of the package
gets a class that can be called, as Python's data model provides for (section
"Customizing module attribute access").
"""

from collections.abc import Callable
import importlib
import inspect
import sys
import types
from typing import Any

_API = "bamboo_jax.api"


class CallableModule(types.ModuleType):
  """A module that forwards calls to the function of its name in the API."""

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Calls the function; `help` and `inspect` show that one's signature."""
    return _find(self)(*args, **kwargs)

  @property
  def __signature__(self) -> inspect.Signature:
    """That of the function."""
    return inspect.signature(_find(self))

  @property
  def __doc__(self) -> str:
    """That of the package, then signature and docstring of the function."""
    function = _find(self)
    call = f"{function.__name__}{inspect.signature(function)}"
    own, text = self.__dict__["__doc__"], inspect.getdoc(function)
    return f"{own}\nCalled as a function:\n\n{call}\n\n{text}"


def make_callable(package: str) -> None:
  """Lets a package be called; it is the first statement of the package."""
  sys.modules[package].__class__ = CallableModule


def _find(module: types.ModuleType) -> Callable[..., Any]:
  name = module.__name__.rpartition(".")[2]
  return getattr(importlib.import_module(_API), name)
