"""Files that are either whole or absent, and folders with one user."""

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import functools
import os
import pathlib
import socket
import tempfile
import time
from typing import IO, TypeVar

from absl import logging

_LOCK = ".lock"
_PATIENCE_SECS = 30.0  # With a folder that gives errors.
_RETRY_SECS = 0.1
_T = TypeVar("_T")


def ask_again(read: Callable[[], _T]) -> _T:
  """Returns what `read` does; for a while it is asked again after `OSError`.

  A shared folder may give one for a moment, and nobody need end for that.
  """
  end_secs = time.monotonic() + _PATIENCE_SECS
  while True:
    try:
      return read()
    except OSError as error:
      if time.monotonic() >= end_secs:
        raise
      logging.log_every_n_seconds(logging.WARNING, "%s. Again.", 10, error)
    time.sleep(_RETRY_SECS)


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
  """Keeps other processes that lock the same folder from working in it.

  The folder is made if needed; the lock ends with the `with` block or with the
  process. Raises `ValueError` that names the holder of the lock, or `OSError`.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  with open_lock(folder / _LOCK) as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      file.seek(0)
      raise ValueError(
          f"{folder} is in use by {file.read().strip() or 'another process'}. "
          "Name another folder, or end that process."
      ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    yield


def open_lock(path: str | os.PathLike[str]) -> IO[str]:
  """Opens a file to lock it, which is made if needed; `OSError` if it cannot.

  Nobody else may even read it: who can open a file can hold its lock.
  """
  file = open(path, "a+", opener=functools.partial(os.open, mode=0o600))
  status = os.fstat(file.fileno())
  if status.st_mode & 0o077 and status.st_uid == os.geteuid():
    os.fchmod(file.fileno(), 0o600)
  return file


def write_atomically(
    path: str | os.PathLike[str], content: bytes | str, *, sync: bool = True
) -> None:
  """Replaces the file at `path`; a reader sees the old or the new content.

  With `sync` it blocks until the content is on disk. Raises `OSError`, which
  names `path`, and then leaves the old file as it was.
  """
  path = pathlib.Path(path)
  data = content.encode() if isinstance(content, str) else content
  try:
    _replace(path, data, sync=sync)
  except OSError as error:  # It names a file of ours, or none.
    raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: pathlib.Path, data: bytes, *, sync: bool) -> None:
  fd, name = tempfile.mkstemp(
      dir=path.parent, prefix=f".{path.name}.", suffix=".part"
  )
  try:
    with os.fdopen(fd, "wb") as file:
      file.write(data)
      file.flush()
      if sync:
        os.fsync(file.fileno())
    os.chmod(name, 0o644)
    os.replace(name, path)
  except BaseException:
    os.unlink(name)
    raise
