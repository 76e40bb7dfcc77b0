"""The files of a run whose workdir is the URL of a bucket: s3://, gs:// or az://.

Each machine works in a folder of its own, as runs in a folder do. The bucket has what must
outlive the machines:

  secret                  made by the first process; all others read it
  records/                who is a member, see `records`
  checkpoints/            parts, then manifests, see `checkpoint.places`
  metrics.jsonl, rows/,   copies of what the folder has: put with each checkpoint and at the
    and other files       end, and fetched by a machine that has less
  programs/               compiled programs, see `training.record.workdir`
"""

from collections.abc import Iterator
import contextlib
import datetime
import fcntl
import os
import pathlib
import shutil
import threading
import urllib.parse

from bamboo_jax import base
from bamboo_jax.cluster import records
from bamboo_jax.metrics import loggers, rows as rows_lib
from bamboo_jax.net import identity

_TIMEOUT = datetime.timedelta(seconds=60)  # Of a request that moves data.
_SECRET, _METRICS = "secret", "metrics.jsonl"
_OF_MACHINE = ("programs", "logs", ".lock")  # Of all runs that it had at a URL.
# What readers and the next writer of a run need, beside rows.
_FILES = ("config.json", "data.json", "nodes.jsonl", "summary.json", _SECRET, *loggers.FILES)


def local(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the folder of this machine for a run: `workdir`, or one in the user's cache."""
  if not base.is_bucket(workdir):
    return pathlib.Path(workdir)
  if not (cache := base.find_cache("runs")):
    raise ValueError(f"There is no home folder for files of {workdir}: set XDG_CACHE_HOME.")
  return pathlib.Path(cache, urllib.parse.quote(os.fspath(workdir).rstrip("/"), safe=""))


def take(workdir: str) -> pathlib.Path:
  """Returns `local`, with the secret of the run and what was put there, if `workdir` is a URL.

  If the secret here is not that of the bucket, another run was there, whose files are removed.
  Raises `OSError` if the bucket is not there, or may not be written; `ValueError` if a process
  of this machine writes the log of that other run.
  """
  folder = local(workdir)
  if base.is_bucket(workdir):
    bucket = records.Bucket(workdir)
    with base.lock_folder(folder.parent, waits=True):  # Others of this machine may begin, too.
      secret = folder / _SECRET
      if secret.exists() and bucket.read(_SECRET) != secret.read_bytes():
        with _held(folder / _METRICS) as is_free:
          if not is_free:
            raise ValueError(
                f"A run on this machine writes to {folder}, but {workdir} was emptied, or has "
                "another run: end it first."
            )
          for path in folder.iterdir():
            if path.name not in _OF_MACHINE:
              (shutil.rmtree if path.is_dir() else os.unlink)(path)
      drawn = pathlib.Path(identity.draw_secret(folder))
      bucket.create(_SECRET, drawn.read_bytes())  # Also if it is there: may this process write?
      if (found := bucket.read(_SECRET)) != drawn.read_bytes():
        base.write_atomically(drawn, found or b"", mode=0o600)
    Mirror(workdir, folder).pull()
  return folder


@contextlib.contextmanager
def _held(log: pathlib.Path) -> Iterator[bool]:
  """Keeps others from opening a log, if there is one; yields whether none writes it now."""
  with contextlib.ExitStack() as stack:
    try:
      if log.exists():
        fcntl.flock(stack.enter_context(open(log, "rb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
      is_free = True
    except BlockingIOError:
      is_free = False
    yield is_free


def look(workdir: str) -> pathlib.Path:
  """Returns `workdir`, or a copy of the files of a bucket that lasts as long as this process.

  Raises `ValueError` if there are none.
  """
  if not base.is_bucket(workdir):
    return pathlib.Path(workdir)
  name = workdir.rstrip("/").rpartition("/")[2]  # Named in reports.
  folder = pathlib.Path(base.make_temporary(), name)
  folder.mkdir()
  Mirror(workdir, folder).pull(is_new=True)
  if not (folder / _SECRET).exists():
    raise ValueError(f"No run is at {workdir}.")
  return folder


def explain_left(folder: pathlib.Path, error: OSError) -> str:
  """Returns why a command fails whose run has ended, but for the last `Mirror.push`."""
  return (
      f"All steps are done, but log and summary are only in {folder}: {error}. "
      "The same command copies them to the bucket."
  )


class Mirror:
  """Copies files between `folder` and the bucket at `url`; calls block, and raise `OSError`."""

  def __init__(self, url: str, folder: pathlib.Path) -> None:
    self._url, self._folder = url.rstrip("/"), folder
    self._bucket = records.Bucket(url, timeout=_TIMEOUT)
    self._put: dict[str, tuple[int, int]] = {}  # Time and size of the files that were put.
    self._lock = threading.Lock()  # A save pushes in its thread, a hand-over in another.
    self._is_behind = False  # Whether the log there may have lines that are not here.

  def push(self, name: str = "", *, is_writer: bool = True) -> None:
    """Puts what has changed: the rows of member `name`, of all if it is "".

    If this member `is_writer` of the log, it puts all other files, too.
    """
    with self._lock:
      rows = self._folder / "rows"
      paths = [*rows.glob(f"{name or '*'}.json")]
      if is_writer:
        paths += rows.glob(rows_lib.PLANNED) if name else ()
        paths += [p for p in self._folder.glob("[!.]*") if p.is_file() and p.name != _SECRET]
      # The log is last: who finds it finds the others.
      for path in sorted(paths, key=lambda path: path.name == _METRICS):
        status, key = path.stat(), path.relative_to(self._folder).as_posix()
        stamp = status.st_mtime_ns, status.st_size
        if self._put.get(key) != stamp:
          if key == _METRICS and self._is_behind and (self.pull() or self._is_behind):
            raise OSError(f"{self._url}/{key} has lines that are not here, so it stays as it is")
          self._bucket.put(key, path.read_bytes())
          self._put[key] = stamp

  def clear_rows(self) -> None:
    """Removes the rows there, of an earlier run."""
    for key in self._bucket.keys("rows"):
      self._bucket.delete(key)

  def pull(self, *, is_new: bool = False) -> bool:
    """Fetches the files, unless the log here goes on from the one there; returns whether it did.

    If the folder `is_new`, it fetches them in any case.
    """
    log, self._is_behind = self._folder / _METRICS, True
    there = self._bucket.read(_METRICS) or b""  # First, as this machine may be writing.
    here = log.read_bytes() if log.exists() else b""
    if here.startswith(there) and not is_new:
      self._is_behind = False
      return False
    rows = self._bucket.keys("rows")
    (self._folder / "rows").mkdir(exist_ok=True)
    found = {key: self._bucket.read(key) for key in (*_FILES, *rows)} | {_METRICS: there or None}
    with _held(log) as is_free:
      if not is_free:
        return False
      for key, content in found.items():
        if content is not None:
          mode = 0o600 if key == _SECRET else 0o644
          base.write_atomically(self._folder / key, content, mode=mode)
    self._is_behind = False
    return True
