"""How much XLA optimises in tests; compiling takes most of their time.

Without LLVM's optimisations programs of small models compile in half the time, and compute
the same up to rounding. With `launch/test --all` all is compiled as for a user.
"""

from collections.abc import Mapping
import os

_QUICK = ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true")
_VARIABLE = "XLA_FLAGS"  # XLA reads it when it compiles for the first time.


def choose(*, is_quick: bool) -> None:
  """Sets how this process compiles, and those that it starts."""
  quick = _QUICK if is_quick else ()
  os.environ[_VARIABLE] = " ".join([*_others(os.environ), *quick])


def environ_of_users() -> dict[str, str]:
  """Returns variables of a process that compiles as for a user."""
  return {**os.environ, _VARIABLE: " ".join(_others(os.environ))}


def _others(environ: Mapping[str, str]) -> list[str]:
  flags = environ.get(_VARIABLE, "").split()
  return [flag for flag in flags if flag not in _QUICK]
