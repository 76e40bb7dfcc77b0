"""Keeps XLA's executables, so that each program is compiled once.

A pipeline needs one program on many devices: on the owner of a stage, on its
shadow, after every recovery, in every process of a machine, and in every run.
Compiling takes seconds; loading takes milliseconds and gives the same bits. JAX
looks every program up in its persistent compilation cache; this module reads and
writes the entries of that cache. JAX's own files do not serve: JAX writes them in
place, never replaces a damaged one, does not check which users may write to the
folder, and compiles again for each device.

A fault of the folder costs time, never a run: a torn, damaged or foreign entry
counts as absent, and a full or read-only disk is reported once. Entries are
machine code, so the folder and each entry must belong to this user or root and
must not be writable by others: where others may write to the parent folder,
they can put another folder in its place at any time.

If several processes or threads want the same program at once, one compiles it:

  1 A  load(key): absent, has a lock     B  load(key): absent, waits for the lock
  2 A  compiles
  3 A  save(key), releases the lock      B  reads it

B waits for a limited time: A may have been stopped. If A cannot compile, its
thread releases the lock with its next `load`.
"""

from collections.abc import Callable
import contextlib
import fcntl
import functools
import hashlib
import os
import pathlib
import threading
import time
from typing import Any

from absl import logging
import jax

from bamboo_jax import base
from bamboo_jax.runtime import compat, rounding

_FORMAT = 2  # Version of the entries' format.
_MAGIC = b"bamboo_jax executable\n"
_HEAD_BYTES = len(_MAGIC) + 32  # With a digest.
_ENTRY, _PART, _LOCK = ".xla", ".part", ".lock"  # Suffixes.
_PART_SECS = 3600.0  # The writer of an older part is gone.
_POLL_SECS = 0.02
_CHECK_EVERY = 10  # Programs; a check takes about as long as loading one.
_MOST_MAPPINGS = 0.9  # Share of the limit; the rest is for later allocations.
_PROC = pathlib.Path("/proc")


class ProgramStore:
  """Executables by key; thread-safe, and never raises `OSError`.

  Lives as long as the process, even if JAX drops its backends.

  Attributes:
    folder: Shared with other processes; None for none, or if others may write to it.
    num_compiled: Number of programs that XLA compiled.
    num_loaded: Number of programs loaded from the cache.
    used: Files of the entries that this process has loaded or added.
    fetch: Returns the content of a file that is missing here, if another place has it.
  """

  def __init__(
      self, folder: str = "", *, limit_bytes: int = 2**30, wait_secs: float = 20.0
  ) -> None:
    """Compiles nothing yet.

    Args:
      folder: See `use_folder`.
      limit_bytes: Limit of all entries together; the least recently used are
        deleted.
      wait_secs: How long to wait for a process that compiles the same program.
    """
    self._limit_bytes, self._wait_secs = limit_bytes, wait_secs
    self.num_compiled = self.num_loaded = 0
    self._programs: dict[str, bytes] = {}
    self.used: set[str] = set()
    self.fetch: Callable[[str], bytes | None] = lambda file: None
    self._lock = threading.Lock()
    self._claims = threading.local()  # `file`: the lock of this thread.
    self.use_folder(folder)

  def use_folder(self, path: str) -> None:
    """Shares programs through a folder, created if it is missing; "" for none."""
    self.folder: pathlib.Path | None = None
    self._path, self._warned = pathlib.Path(path), set[str]()
    if not path:
      return
    try:
      self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
      reason = base.find_danger(self._path.stat())
    except OSError as error:
      reason = error.strerror
    if reason is None:
      self.folder = self._path
    else:
      self._warn("cannot be used", reason)

  def load(self, key: str, deserialize: Callable[[bytes], Any]) -> Any:
    """Returns an executable; None if there is none, and then the caller compiles it.

    Others that ask for it wait for `save`, until this thread asks for another.
    """
    name = self._find_name(key)
    self._release()
    if (data := self._programs.get(name) or self._read(name)) is None:
      self._claim(name)
      # Has the previous holder written it, or another machine?
      if (data := self._read(name) or self._fetch(name)) is None:
        return None
      self._release()
    try:
      # One at a time: XLA has crashed on concurrent loads, which are no faster.
      with self._lock:
        if self.num_loaded % _CHECK_EVERY == 0:
          check_mappings()
        executable = deserialize(data)
        self.num_loaded += 1
    except jax.errors.JaxRuntimeError as error:
      self._warn("has a bad entry", f"{name}{_ENTRY}, {error}")
      return None  # `save` replaces the entry.
    self._programs[name] = data
    self.used.add(f"{name}{_ENTRY}")
    return executable

  def save(self, key: str, executable: Any) -> None:
    """Keeps an executable that has been compiled; replaces its entry atomically."""
    with self._lock:
      self.num_compiled += 1
    name = self._find_name(key)
    try:
      self._programs[name] = data = executable.serialize()
      if self.folder is not None and len(data) <= self._limit_bytes:
        self._write(self.folder / f"{name}{_ENTRY}", _seal(name, data))
    except jax.errors.JaxRuntimeError:  # Some backends cannot serialize.
      pass
    finally:
      self._release()

  def _find_name(self, key: str) -> str:
    """Returns a valid file name, which also depends on what JAX leaves out of its keys.

    XLA:CPU compiles for the host's exact processor, and splits loops by the
    number of threads of this process.
    """
    parts = (str(_FORMAT), jax.__version__, self._host, key)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()

  @functools.cached_property
  def _host(self) -> str:  # JAX has its devices by now.
    return rounding.describe_host()

  def _read(self, name: str) -> bytes | None:
    """Returns an entry of the folder; None if it is absent or damaged."""
    if self.folder is None:
      return None
    path = self.folder / f"{name}{_ENTRY}"
    try:
      with open(path, "rb") as file:
        danger = base.find_danger(os.fstat(file.fileno()))
        content = b"" if danger else file.read()
    except FileNotFoundError:
      return None
    except OSError as error:
      self._warn("cannot be read", error.strerror)
      return None
    with contextlib.suppress(OSError):
      os.utime(path)  # Marks it as used.
    data = content[_HEAD_BYTES:]
    if danger or content != _seal(name, data):
      self._warn("has a bad entry", f"{path.name}, {danger or 'not what was written'}")
      return None
    return data

  def _fetch(self, name: str) -> bytes | None:
    """Returns an entry that another place has; it is kept here, too."""
    file = f"{name}{_ENTRY}"
    if self.folder is None or (content := self.fetch(file)) is None:
      return None
    self._write(self.folder / file, content)
    return self._read(name)

  def _write(self, path: pathlib.Path, content: bytes) -> None:
    try:
      base.write_atomically(path, content, sync=False)  # A torn entry is detected.
      self._evict(path.parent)
    except OSError as error:
      self._warn("cannot be written to", error.strerror)
    else:
      self.used.add(path.name)

  def _claim(self, name: str) -> None:
    """Keeps others from compiling a program; blocks up to `wait_secs`."""
    with contextlib.suppress(OSError):  # No locks: all compile.
      if self.folder is not None:
        # Few locks for all programs, so that they need not be removed.
        self._claims.file = file = base.open_lock(self.folder / f"{name[:2]}{_LOCK}")
        deadline = time.monotonic() + self._wait_secs
        while time.monotonic() < deadline:
          with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
          time.sleep(_POLL_SECS)

  def _release(self) -> None:
    if (file := getattr(self._claims, "file", None)) is not None:
      file.close()
      self._claims.file = None

  def _evict(self, folder: pathlib.Path) -> None:
    entries, oldest_part = [], time.time() - _PART_SECS
    for path in folder.iterdir():
      with contextlib.suppress(FileNotFoundError):  # Already removed.
        status = path.stat()
        if path.suffix == _ENTRY:
          entries.append((status.st_mtime, status.st_size, path))
        elif path.suffix == _PART and status.st_mtime < oldest_part:
          path.unlink()
    excess = sum(size for _, size, _ in entries) - self._limit_bytes
    for _, size, path in sorted(entries):  # The least recently used first.
      if excess <= 0:
        break
      path.unlink(missing_ok=True)
      excess -= size

  def _warn(self, what: str, reason: str | None) -> None:
    if what not in self._warned:
      self._warned.add(what)
      logging.warning(
          "The folder of compiled programs %s %s (%s). Training goes on, but "
          "compiles more; --program_cache names another folder.",
          self._path,
          what,
          reason,
      )


def _seal(name: str, data: bytes) -> bytes:
  """Returns the content of a file: `data` with its name and a checksum."""
  return _MAGIC + hashlib.sha256(name.encode() + data).digest() + data


_of_process = ProgramStore()


def use(folder: str | None = None) -> ProgramStore:
  """Makes JAX keep its programs here; returns those of this process.

  XLA's choices of kernels on GPUs are kept in the folder, too.

  Args:
    folder: Shared with other processes; "" for none, None to keep the current
      one (at first none).
  """
  if folder is not None:
    _of_process.use_folder(folder)
    jax.config.update("jax_compilation_cache_dir", folder if _of_process.folder else None)
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
