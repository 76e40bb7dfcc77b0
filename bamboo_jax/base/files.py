"""Files that are either whole or absent, and folders with one user."""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib
import socket
import tempfile

_LOCK = ".lock"


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
  """Keeps other processes that lock the same folder from working in it.

  The folder is made if needed; the lock ends with the `with` block or with the
  process. Raises `ValueError` that names the holder of the lock, or `OSError`.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / _LOCK, "a+") as file:
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
