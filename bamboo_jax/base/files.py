"""Atomic writes, locks on folders, and reads that are retried."""

import atexit
from collections.abc import Callable, Iterator
import contextlib
import fcntl
import functools
import math
import os
import pathlib
import re
import shutil
import socket
import stat
import tempfile
import time
from typing import IO, TypeVar
import urllib.parse

from absl import logging

_LOCK = ".lock"
_PATIENCE_SECS = 30.0  # Retries after errors of a shared folder.
_RETRY_SECS = 0.1
_LEAST_FREE_BYTES = 1 << 16
_BUCKETS = ("s3://", "gs://", "az://")
_FILE = "file:///"
_T = TypeVar("_T")
_temporary: list[str] = []  # Folders.


def ask_again(read: Callable[[], _T]) -> _T:
  """Returns `read()`, retried for up to 30 s after the first `OSError`; blocks.

  A shared folder may fail for a moment, which must not end the process. Raises
  the last `OSError`.
  """
  end_secs = math.inf  # Not from the start: the first call may have hung for long.
  while True:
    try:
      return read()
    except OSError as error:
      end_secs = min(end_secs, time.monotonic() + _PATIENCE_SECS)
      if time.monotonic() >= end_secs:
        raise
      logging.log_every_n_seconds(logging.WARNING, "%s. Retrying.", 10, error)
    time.sleep(_RETRY_SECS)


def find_full(folder: str | os.PathLike[str]) -> str:
  """Returns that the disk of a folder is full, or "" if it is not."""
  if shutil.disk_usage(folder).free >= _LEAST_FREE_BYTES:
    return ""
  return (
      f"the disk of {folder} is full: no log can be written, and a death or a "
      "join stops training until there is room"
  )


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
  """Has an `OSError` of a `with` block name `path`: a full disk names no file, and some a part."""
  try:
    yield
  except OSError as error:
    raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str], *, waits: bool = False) -> Iterator[None]:
  """Holds an exclusive lock on a folder, made if needed, in a `with` block.

  The lock ends with the process at the latest. While another process has it,
  this blocks if `waits`; or else raises `ValueError`, which names the holder.
  Raises `OSError`, too.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  with open_lock(folder / _LOCK) as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
      file.seek(0)
      raise ValueError(
          f"{folder} is in use by {file.read().strip() or 'another process'}. "
          "Name another folder, or end that process."
      ) from None
    file.truncate(0)
    with naming(folder):
      os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
    yield


def open_lock(path: str | os.PathLike[str]) -> IO[str]:
  """Opens a lock file, made if needed; raises `OSError` if it cannot.

  Other users may not even read it: a user who can open it can hold its lock.
  """
  file = open(path, "a+", opener=functools.partial(os.open, mode=0o600))
  status = os.fstat(file.fileno())
  if status.st_mode & 0o077 and status.st_uid == os.geteuid():
    os.fchmod(file.fileno(), 0o600)
  return file


def find_danger(status: os.stat_result) -> str | None:
  """Returns a reason to distrust a file or folder; None if it is safe."""
  if status.st_uid not in (0, os.geteuid()):
    return f"it belongs to another user, {status.st_uid}"
  if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
    return "others may write to it; chmod go-w"
  return None


def refuse_url(what: str, path: str | os.PathLike[str], *, takes_bucket: bool = False) -> None:
  """Raises `ValueError` if `path`, the value of `what`, is a URL: it would name a local folder.

  That of a bucket is accepted if it `takes_bucket`.
  """
  # One slash is enough: a path keeps only one of two.
  if re.match(r"\w+:/", os.fspath(path)) and not (takes_bucket and is_bucket(path)):
    must = f"{', '.join((*_BUCKETS, _FILE))} or a path" if takes_bucket else "a path"
    raise ValueError(f"{what}={os.fspath(path)!r} is a URL, must be {must}.")


def find_place(path: str | os.PathLike[str]) -> str:
  """Returns the path that a URL file:///PATH names; paths and other URLs as they are."""
  text = os.fspath(path)
  return urllib.parse.unquote(text.removeprefix("file://")) if text.startswith(_FILE) else text


def is_bucket(path: str | os.PathLike[str]) -> bool:
  """Returns whether this is the URL of a place in a bucket, and not a path."""
  return os.fspath(path).startswith(_BUCKETS)


def find_cache(name: str) -> str:
  """Returns a folder of the package in the user's cache; "" if there is no home folder."""
  cache = os.environ.get("XDG_CACHE_HOME")
  try:
    root = pathlib.Path(cache) if cache else pathlib.Path.home() / ".cache"
  except RuntimeError:
    return ""
  return str(root / "bamboo_jax" / name)


def make_temporary() -> str:
  """Returns a new folder, which lasts until this process ends, or `remove_temporary`."""
  folder = tempfile.mkdtemp(prefix="bamboo_jax.")
  _temporary.append(folder)
  return folder


@atexit.register
def remove_temporary() -> None:
  """Removes the folders of `make_temporary`; call before `os._exit`."""
  while _temporary:
    shutil.rmtree(_temporary.pop(), ignore_errors=True)


def sync(path: str | os.PathLike[str]) -> None:
  """Blocks until a file, or the list of files of a directory, is on disk."""
  fd = os.open(path, os.O_RDONLY)
  try:
    os.fsync(fd)
  finally:
    os.close(fd)


def write_atomically(
    path: str | os.PathLike[str], content: bytes | str, *, sync: bool = True, mode: int = 0o644
) -> None:
  """Replaces the file at `path`; a reader sees the old or the new content.

  With `sync` it blocks until the content is on disk. Raises `OSError`, which
  names `path`, and then leaves the old file as it was.
  """
  path = pathlib.Path(path)
  data = content.encode() if isinstance(content, str) else content
  with naming(path):
    _replace(path, data, sync=sync, mode=mode)


def _replace(path: pathlib.Path, data: bytes, *, sync: bool, mode: int) -> None:
  fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
  try:
    with os.fdopen(fd, "wb") as file:
      file.write(data)
      file.flush()
      if sync:
        os.fsync(file.fileno())
    os.chmod(name, mode)
    os.replace(name, path)
  except BaseException:
    os.unlink(name)
    raise
