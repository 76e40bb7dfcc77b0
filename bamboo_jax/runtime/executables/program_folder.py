"""A folder of executables that processes share.

A fault of the folder costs time, never a run: a torn, damaged or foreign entry
counts as absent, and a full or read-only disk is reported once. Entries are
machine code, so the folder and each entry must belong to this user or root and
must not be writable by others: where others may write to the parent folder,
they can put another folder in its place at any time.

If several processes or threads want the same program at once, one compiles it:

  1 A  get(key): absent, has a lock     B  get(key): absent, waits for the lock
  2 A  compiles
  3 A  put(key), releases the lock      B  reads it

B waits for a limited time: A may have been stopped. If A cannot compile, its
thread releases the lock with its next `get`.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import threading
import time

from absl import logging

from bamboo_jax import base

_MAGIC = b"bamboo_jax executable\n"
_DIGEST_BYTES = 32
_ENTRY, _PART, _LOCK = ".xla", ".part", ".lock"  # Suffixes.
_PART_SECS = 3600.0  # The writer of an older part is gone.
_POLL_SECS = 0.02


class ProgramFolder:
  """Entries by key; thread-safe, and never raises `OSError`.

  Attributes:
    is_usable: Whether it is there, and nobody else may write to it.
  """

  def __init__(
      self, path: str | os.PathLike[str], *, limit_bytes: int = 2**30, wait_secs: float = 20.0
  ) -> None:
    """Creates the folder if it is missing.

    Args:
      limit_bytes: Limit of all entries together; the least recently used are
        deleted.
      wait_secs: How long to wait for a process that compiles the same program.
    """
    self._path = pathlib.Path(path)
    self._limit_bytes = limit_bytes
    self._wait_secs = wait_secs
    self._warned: set[str] = set()
    self._claims = threading.local()  # `file`: the lock of this thread.
    try:
      self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
      reason = base.find_danger(self._path.stat())
    except OSError as error:
      reason = error.strerror
    self.is_usable = reason is None
    if not self.is_usable:
      self._warn("cannot be used", reason)

  def get(self, key: str) -> bytes | None:
    """Returns an entry; None if it is absent or damaged.

    Then this thread has a claim: others that ask for it wait for its `put`.
    """
    self._release()
    if not self.is_usable:
      return None
    found = self._read(key)
    if found is None:
      self._claim(key)
      found = self._read(key)  # Written by the previous holder.
      if found is not None:
        self._release()
    return found

  def put(self, key: str, data: bytes) -> None:
    """Adds or replaces an entry atomically."""
    try:
      if self.is_usable and len(data) <= self._limit_bytes:
        # Not synced: a torn entry is detected.
        path = self._path / f"{key}{_ENTRY}"
        base.write_atomically(path, _seal(key, data), sync=False)
        self._evict()
    except OSError as error:
      self._warn("cannot be written to", error.strerror)
    finally:
      self._release()

  def reject(self, key: str, reason: str) -> None:
    """Warns that an entry is unusable; it will be overwritten."""
    self._warn("has a bad entry", f"{key}{_ENTRY}, {reason}")

  def _read(self, key: str) -> bytes | None:
    path = self._path / f"{key}{_ENTRY}"
    try:
      with open(path, "rb") as file:
        danger = base.find_danger(os.fstat(file.fileno()))
        content = b"" if danger else file.read()
    except FileNotFoundError:
      return None
    except OSError as error:
      self._warn("cannot be read", error.strerror)
      return None
    if danger:
      self.reject(key, danger)
      return None
    with contextlib.suppress(OSError):
      os.utime(path)  # Marks it as used.
    data = content[len(_MAGIC) + _DIGEST_BYTES :]
    if content != _seal(key, data):
      self.reject(key, "not what was written")
      return None
    return data

  def _claim(self, key: str) -> None:
    """Keeps others from compiling `key`; blocks up to `wait_secs`."""
    # Few locks for all keys, so that they need not be removed.
    path = self._path / f"{key[:2]}{_LOCK}"
    with contextlib.suppress(OSError):  # No locks: all compile.
      self._claims.file = file = base.open_lock(path)
      deadline = time.monotonic() + self._wait_secs
      while not _try_lock(file.fileno()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECS)

  def _release(self) -> None:
    if (file := getattr(self._claims, "file", None)) is not None:
      file.close()
      self._claims.file = None

  def _evict(self) -> None:
    entries, oldest_part = [], time.time() - _PART_SECS
    for path in self._path.iterdir():
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


def _seal(key: str, data: bytes) -> bytes:
  """Returns the content of a file: `data` with its key and a checksum."""
  return _MAGIC + hashlib.sha256(key.encode() + data).digest() + data


def _try_lock(fd: int) -> bool:
  try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def default_path() -> str:
  """Returns the folder in the user's cache; "" if there is no home folder."""
  return base.find_cache("programs")
