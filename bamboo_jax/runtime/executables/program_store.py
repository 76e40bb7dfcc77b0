"""Keeps what XLA has compiled, in memory and on disk, for JAX's persistent cache."""

from collections.abc import Callable
import functools
import hashlib
import pathlib
import threading
from typing import Any

import jax

from bamboo_jax import base
from bamboo_jax.runtime import compat, rounding
from bamboo_jax.runtime.executables import program_folder as folder_lib

_FORMAT = 2  # Version of the entries' format.
_CHECK_EVERY = 10  # Programs; a check takes about as long as loading one.
_MOST_MAPPINGS = 0.9  # Share of the limit; the rest is for later allocations.
_PROC = pathlib.Path("/proc")


class ProgramStore:
  """Executables by key; thread-safe.

  Lives as long as the process, even if JAX drops its backends.

  Attributes:
    folder: Shared with other processes; None for none.
    num_compiled: Number of programs that XLA compiled.
    num_loaded: Number of programs loaded from the cache.
  """

  def __init__(self, folder: folder_lib.ProgramFolder | None = None) -> None:
    self.folder = folder
    self.num_compiled = self.num_loaded = 0
    self._programs: dict[str, bytes] = {}
    self._lock = threading.Lock()

  @functools.cached_property
  def _host(self) -> str:  # JAX has its devices by now.
    return rounding.describe_host()

  def load(self, key: str, deserialize: Callable[[bytes], Any]) -> Any:
    """Returns an executable; None if there is none, and then the caller compiles it."""
    key = self._find_name(key)
    data = self._programs.get(key)
    if data is None and self.folder is not None:
      data = self.folder.get(key)
    if data is None:
      return None
    try:
      # One at a time: XLA has crashed on concurrent loads, which are no faster.
      with self._lock:
        if self.num_loaded % _CHECK_EVERY == 0:
          check_mappings()
        executable = deserialize(data)
        self.num_loaded += 1
    except jax.errors.JaxRuntimeError as error:
      if self.folder is not None:
        self.folder.reject(key, str(error))
      return None  # `save` replaces the entry.
    self._programs[key] = data
    return executable

  def save(self, key: str, executable: Any) -> None:
    """Keeps an executable that has been compiled."""
    with self._lock:
      self.num_compiled += 1
    try:
      data = executable.serialize()
    except jax.errors.JaxRuntimeError:  # Some backends cannot serialize.
      return
    key = self._find_name(key)
    self._programs[key] = data
    if self.folder is not None:
      self.folder.put(key, data)

  def _find_name(self, key: str) -> str:
    """Returns a valid file name, which also depends on what JAX leaves out of its keys.

    XLA:CPU compiles for the host's exact processor, and splits loops by the
    number of threads of this process.
    """
    parts = (str(_FORMAT), jax.__version__, self._host, key)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


_of_process = ProgramStore()


def use(folder: str | None = None) -> ProgramStore:
  """Makes JAX keep its programs here; returns those of this process.

  XLA's choices of kernels on GPUs are kept in the folder, too.

  Args:
    folder: Shared with other processes; "" for none, None to keep the current
      one (at first none).
  """
  if folder is not None:
    found = folder_lib.ProgramFolder(folder) if folder else None
    _of_process.folder = found
    is_usable = found is not None and found.is_usable
    jax.config.update("jax_compilation_cache_dir", folder if is_usable else None)
  compat.use_cache(_of_process.load, _of_process.save)
  return _of_process


def count_mappings() -> int:
  """Returns the number of memory mappings of this process; 0 if unknown.

  XLA:CPU takes about three for each kernel of a loaded program, and a process
  that exceeds the limit of Linux crashes without an error message.
  """
  try:
    return (_PROC / "self/maps").read_bytes().count(b"\n")
  except OSError:  # Not Linux.
    return 0


def check_mappings() -> None:
  """Raises `base.CompilationError` if few mappings remain."""
  try:
    most = int((_PROC / "sys/vm/max_map_count").read_text())
  except OSError:  # Not Linux.
    return
  if (number := count_mappings()) > _MOST_MAPPINGS * most:
    raise base.CompilationError(
        f"The programs of this process take {number} mappings of memory of the "
        f"{most} that there can be, vm.max_map_count. Raise that, or let its "
        "nodes share fewer devices, with a lower NPROC."
    )
