"""Mappings of memory, of which Linux gives a process only so many.

XLA:CPU takes about three for each kernel of a program that is loaded, and a
process that has no more of them crashes without saying why.
"""

import functools
import pathlib

from bamboo_jax import base

_PROC = pathlib.Path("/proc")
_MOST = 0.9  # Of what there is; the rest is for whatever comes next.


def count() -> int:
  """Returns how many mappings this process has; 0 if that is not known."""
  try:
    return (_PROC / "self/maps").read_bytes().count(b"\n")
  except OSError:  # Another system than Linux.
    return 0


@functools.cache
def limit() -> int | None:
  """Returns how many a process can have, if that is known."""
  try:
    return int((_PROC / "sys/vm/max_map_count").read_text())
  except OSError:
    return None


def check() -> None:
  """Raises `base.CompilationError` if there are hardly any left."""
  number, most = count(), limit()
  if most is not None and number > _MOST * most:
    raise base.CompilationError(
        f"The programs of this process take {number} mappings of memory of the "
        f"{most} that there can be, vm.max_map_count. Raise that, or let its "
        "nodes share fewer devices, with a lower NPROC."
    )
