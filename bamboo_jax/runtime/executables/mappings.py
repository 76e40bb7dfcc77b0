"""Limits the memory mappings of a process, which Linux caps (vm.max_map_count).

XLA:CPU takes about three mappings for each kernel of a loaded program, and a
process that exceeds the limit crashes without an error message.
"""

import functools
import pathlib

from bamboo_jax import base

_PROC = pathlib.Path("/proc")
_MOST = 0.9  # Share of the limit; the rest is for later allocations.


def count() -> int:
  """Returns the number of mappings of this process; 0 if unknown."""
  try:
    return (_PROC / "self/maps").read_bytes().count(b"\n")
  except OSError:  # Not Linux.
    return 0


@functools.cache
def limit() -> int | None:
  """Returns the limit of mappings per process; None if unknown."""
  try:
    return int((_PROC / "sys/vm/max_map_count").read_text())
  except OSError:
    return None


def check() -> None:
  """Raises `base.CompilationError` if few mappings remain."""
  number, most = count(), limit()
  if most is not None and number > _MOST * most:
    raise base.CompilationError(
        f"The programs of this process take {number} mappings of memory of the "
        f"{most} that there can be, vm.max_map_count. Raise that, or let its "
        "nodes share fewer devices, with a lower NPROC."
    )
