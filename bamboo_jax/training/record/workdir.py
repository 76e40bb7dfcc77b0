"""The files of a run."""

from concurrent import futures
import datetime
import pathlib
from typing import TYPE_CHECKING

from absl import logging

from bamboo_jax import base
from bamboo_jax.base import threads
from bamboo_jax.checkpoint import manifest
from bamboo_jax.cluster import mirror, records

if TYPE_CHECKING:  # It imports JAX.
  from bamboo_jax.runtime import program_store

_TIMEOUT = datetime.timedelta(seconds=20)  # Of a request for a program.
_LAST_SECS = 10.0


class Workdir:
  """The folder of a run on this machine, `root`.

  Attributes:
    root: The folder.
    url: Where the run is in a bucket, "" if it is in the folder.
    config: The config, as JSON.
    data: Manifest of the training data.
    metrics: The log: one JSON object per line, for each step and event.
    summary: Hashes, last loss, recoveries and costs.
    control: Hash of the last step without a share, see `training.control`.
    trace: Planned and measured steps, for Perfetto.
    rows: The folder of the last steps of all members, see `metrics.rows`.
    profiles: The folder of traces for XProf, by member.
    checkpoints: The folder of the checkpoints, by step.
    loss_plot: Losses over steps.
    schedule_plot: The last step, as planned and as measured.
  """

  def __init__(self, root: pathlib.Path, url: str = "") -> None:
    self.root, self.url = root, url
    self._mirror = mirror.Mirror(url, root) if url else None
    self._programs: SharedPrograms | None = None
    self.config = root / "config.json"
    self.data = root / "data.json"
    self.metrics = root / "metrics.jsonl"
    self.summary = root / "summary.json"
    self.control = root / "control.json"
    self.trace = root / "trace.json"
    self.rows = root / "rows"
    self.profiles = root / "profile"
    self.checkpoints = root / "checkpoints"
    self.loss_plot = root / "loss.png"
    self.schedule_plot = root / "schedule.png"

  @classmethod
  def at(cls, path: str) -> "Workdir":
    """Returns the workdir at a path or URL, without making it.

    Raises `ValueError` if it is neither that of a directory, nor of a bucket.
    """
    base.refuse_url("workdir", path, takes_bucket=True)
    root = mirror.local(path)
    if not path or (root.exists() and not root.is_dir()):
      raise ValueError(f"workdir={path!r} is not a directory.")
    return cls(root, path if base.is_bucket(path) else "")

  @classmethod
  def take(cls, path: str) -> "Workdir":
    """Returns `at`, with what a run needs to go on from a bucket; see `mirror.take`."""
    where = cls.at(path)
    mirror.take(path)
    return where

  @property
  def checkpoints_url(self) -> str:
    """The URL of the checkpoints, "" if they are in the folder."""
    return self.url and f"{self.url.rstrip('/')}/checkpoints"

  def push(self, name: str = "", *, is_writer: bool = True) -> None:
    """Copies files to the bucket, if the run is in one; see `mirror.Mirror.push`."""
    if self._mirror is not None:
      self._mirror.push(name, is_writer=is_writer)
    if self._programs is not None:
      self._programs.push_beside()

  def push_last(self, name: str) -> None:
    """Copies all that is left, as `push`."""
    self.push(name)
    if self._programs is not None:
      self._programs.finish()

  def share_programs(self, programs: "program_store.ProgramStore") -> None:
    """Has compiled programs come from the bucket, and go there, if the run is in one."""
    if self.url and programs.folder is not None:
      self._programs = SharedPrograms(f"{self.url.rstrip('/')}/programs", programs)
    else:
      programs.fetch = lambda file: None  # Of an earlier run of this process.

  def clear_rows(self) -> None:
    """Removes rows from the bucket, if the run is in one; see `mirror.Mirror.clear_rows`."""
    if self._mirror is not None:
      self._mirror.clear_rows()

  def pull(self) -> None:
    """Copies files from the bucket, if the run is in one; see `mirror.Mirror.pull`."""
    if self._mirror is not None:
      self._mirror.pull()


class SharedPrograms:
  """Compiled programs at a URL, for machines whose folders have fewer; errors are warnings.

  Names of programs say what is in them, and for which devices. One is fetched when it is
  needed; those that this process has used are put there by `push`, beside the first save.
  """

  def __init__(self, url: str, programs: "program_store.ProgramStore") -> None:
    self._bucket, self._programs = records.Bucket(url, timeout=_TIMEOUT), programs
    self._there = self._list()
    self._pushing: futures.Future[None] | None = None
    programs.fetch = self._fetch

  def push_beside(self) -> None:
    """Has a thread `push`, unless one does; no save waits for it."""
    if self._pushing is None or self._pushing.done():
      self._pushing = threads.call_beside(self.push, name="programs")

  def finish(self) -> None:
    """Waits for that thread, but not for long: the run is over."""
    if self._pushing is not None:
      futures.wait([self._pushing], _LAST_SECS)

  def push(self) -> None:
    """Puts the programs that are not there."""
    folder, used = self._programs.folder, {*self._programs.used}  # Other threads add to it.
    if folder is None or used <= self._there:
      return
    self._there |= self._list()  # Others may have put them.
    try:
      for file in sorted(used - self._there):
        if (path := folder / file).exists():
          self._bucket.create(file, path.read_bytes())
          self._there.add(file)
    except OSError as error:  # The next call puts them.
      logging.warning("Cannot share a compiled program: %s", error)

  def _list(self) -> set[str]:
    try:
      return {*self._bucket.sizes("")}
    except OSError as error:
      logging.warning("Cannot find compiled programs of other machines: %s", error)
      return set()

  def _fetch(self, name: str) -> bytes | None:
    try:
      return self._bucket.read(name) if name in self._there else None
    except OSError as error:
      self._there = set()  # Compiling takes less time than to ask in vain for each.
      logging.warning("Cannot fetch a compiled program; others are compiled: %s", error)
      return None


def find_saved(path: str) -> int:
  """Returns the step of the newest checkpoint in a workdir; 0 if none is there.

  Looks at names only, so it may be called in a signal handler.
  """
  folder = Workdir(pathlib.Path(path)).checkpoints
  names = manifest.find(folder) if folder.is_dir() else []
  return names[-1].step if names else 0
