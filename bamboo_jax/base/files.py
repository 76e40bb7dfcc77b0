"""Files that are either whole or absent."""

import os
import pathlib
import tempfile


def write_atomically(
    path: str | os.PathLike[str], content: bytes | str
) -> None:
  """Replaces the file at `path`; a reader sees the old or the new content.

  Blocks until the content is on disk. Raises `OSError` if it cannot be written,
  and then leaves the old file as it was.
  """
  path = pathlib.Path(path)
  data = content.encode() if isinstance(content, str) else content
  fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
  try:
    with os.fdopen(fd, "wb") as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    os.chmod(name, 0o644)
    os.replace(name, path)
  except BaseException as error:
    os.unlink(name)
    if isinstance(error, OSError):  # Of a file that has no name yet.
      raise OSError(error.errno, error.strerror, str(path)) from error
    raise
