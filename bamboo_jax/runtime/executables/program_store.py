"""Looks executables up in memory and on disk before XLA compiles them."""

import collections
import functools
import threading
from typing import Any

import jax

from bamboo_jax.runtime import compat
from bamboo_jax.runtime.executables import key as key_lib, mappings, program_folder as folder_lib

_CHECK_EVERY = 10  # Programs; a check takes about as long as loading one.


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
    self._load_lock = threading.Lock()
    self._locks = collections.defaultdict[str, threading.Lock](threading.Lock)  # By key.

  @functools.cached_property
  def _host(self) -> str:  # JAX has its devices by now.
    return key_lib.describe_host()

  def get(self, compilation: compat.Compilation) -> Any:
    """Returns the executable of `compilation`; compiles it on a miss."""
    key = key_lib.make_key(compilation.fingerprint, host=self._host)
    with self._lock:  # A `defaultdict` is not atomic.
      lock = self._locks[key]
    with lock:
      if key in self._programs:
        return self._load(compilation, self._programs[key])
      if self.folder is None:
        return self._compile(key, compilation)
      if (found := self.folder.read(key)) is not None:
        return self._take(key, compilation, found)
      with self.folder.claim(key):
        found = self.folder.read(key)  # Written by the previous holder.
        return self._take(key, compilation, found)

  def _take(self, key: str, compilation: compat.Compilation, found: bytes | None) -> Any:
    """Loads `found`, the entry of the folder; compiles if it is None."""
    if self.folder is None or found is None:
      return self._compile(key, compilation)
    try:
      executable = self._load(compilation, found)
    except jax.errors.JaxRuntimeError as error:
      self.folder.reject(key, str(error))
      return self._compile(key, compilation)
    self._programs[key] = found
    return executable

  def _compile(self, key: str, compilation: compat.Compilation) -> Any:
    executable = compilation.compile()
    with self._lock:
      self.num_compiled += 1
    try:
      data = executable.serialize()
    except jax.errors.JaxRuntimeError:  # Some backends cannot serialize.
      return executable
    self._programs[key] = data
    if self.folder is not None:
      self.folder.write(key, data)
    return executable

  def _load(self, compilation: compat.Compilation, data: bytes) -> Any:
    # One at a time: XLA has crashed on concurrent loads, which are no faster.
    with self._load_lock:
      if self.num_loaded % _CHECK_EVERY == 0:
        mappings.check()
      executable = compilation.load(data)
      self.num_loaded += 1
    return executable


_of_process = ProgramStore()


def use(folder: str | None = None) -> ProgramStore:
  """Routes all compilations of JAX in this process through the cache.

  Returns the executables of this process.

  Args:
    folder: Shared with other processes; "" for none, None to keep the current
      one (at first none).
  """
  if folder is not None:
    _of_process.folder = folder_lib.ProgramFolder(folder) if folder else None
  compat.intercept_compilations(_of_process.get)
  return _of_process
