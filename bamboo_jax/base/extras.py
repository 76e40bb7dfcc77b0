"""Packages that only some users need: the extras of `setup.cfg`."""

import importlib
import types

from bamboo_jax.base import errors


def load(module: str, *, extra: str, what: str) -> types.ModuleType:
  """Imports and returns a module, such as `matplotlib.figure`.

  Args:
    module: Full name.
    extra: The extra that installs it.
    what: What needs it, for the message: "Figures".

  Raises:
    base.MissingExtraError: It cannot be imported; the message is one line that
      names the extra.
  """
  try:
    found = importlib.import_module(module)
    if getattr(found, "__file__", None) is None and hasattr(found, "__path__"):
      # Any folder of that name on the path, as in the current one.
      folder = next(iter(found.__path__))
      raise ImportError(f"{folder} is a folder, not the package {module!r}")
    return found
  except ImportError as error:
    raise errors.MissingExtraError(
        f"{what}: {error}. Install the extra: pip install " f"'bamboo_jax[{extra}]'."
    ) from error
