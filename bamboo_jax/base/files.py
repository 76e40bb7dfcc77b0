"""Files that are either whole or absent."""

import os
import pathlib
import tempfile


def write_atomically(
    path: str | os.PathLike[str], content: bytes | str
) -> None:
  """Replaces the file at `path`; a reader sees the old or the new content.

  Blocks until the content is on disk. Raises `OSError`, which names `path`, if
  it cannot be written, and then leaves the old file as it was.
  """
  path = pathlib.Path(path)
  data = content.encode() if isinstance(content, str) else content
  try:
    _replace(path, data)
  except OSError as error:  # It names a file of ours, or none.
    raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: pathlib.Path, data: bytes) -> None:
  fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
  try:
    with os.fdopen(fd, "wb") as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    os.chmod(name, 0o644)
    os.replace(name, path)
  except BaseException:
    os.unlink(name)
    raise
