"""Packages that can be called: `bamboo_jax.plan(...)` beside its modules.

For both `bamboo_jax.plan(config)` and `from bamboo_jax.plan import planner` to
work, the module object of the package gets a class with `__call__`, see
"Customizing module attribute access" in Python's data model.
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
    """Calls the function of the same name in the API."""
    return _find(self)(*args, **kwargs)

  @property
  def __signature__(self) -> inspect.Signature:
    """Signature of that function, which `help` and `inspect` show."""
    return inspect.signature(_find(self))

  @property
  def __doc__(self) -> str:  # type: ignore[override]
    """Docstring of that function, with its signature; then of the package."""
    function = _find(self)
    call = f"{function.__name__}{inspect.signature(function)}"
    summary, _, text = (inspect.getdoc(function) or "").partition("\n")
    own = self.__dict__["__doc__"]
    return f"{summary}\n\n{call}\n{text}\n\nThe package of that name:\n\n{own}"


def make_callable(package: str) -> None:
  """Makes a package callable; must be the first statement of its `__init__`."""
  sys.modules[package].__class__ = CallableModule


def _find(module: types.ModuleType) -> Callable[..., Any]:
  api: Any = importlib.import_module(_API)
  found: Callable[..., Any] = getattr(api, module.__name__.rpartition(".")[2])
  return found
