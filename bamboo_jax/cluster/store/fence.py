"""The fence of a workdir: which life of which run may write there.

`WORKDIR/fence.json` holds the stamp that the run has in its store. Each of its
lives has an epoch, the number of the view without members from which it began.
A process that finds another stamp, or a later epoch, must neither commit nor
write. Live members update the time of the file, so that no other run takes over
the folder.

`WORKDIR/views` has a file for each view, created atomically, so there is one
view of each number, independently of the store. Lives have files too, so that
a node that was suspended cannot overwrite a later life. Whether a file was
created is decided by reading it afterwards, as a result may be lost.

A file is synced before it gets its name. If the file of a view is damaged all
the same (empty, truncated, garbage, or unreadable though the folder is), no
process has ever read a view from it. A process that has found it damaged for
`VOID_SECS` creates another attempt beside it, which repeats the previous view;
the first readable attempt counts.
"""

from collections.abc import Callable, Generator
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import tempfile
import time
from typing import Any, NamedTuple

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views

BEAT_SECS = 4.0  # Live members update the time within this.
VOID_SECS = 10.0  # After which a damaged file counts as no view.
_NAME = "fence.json"

# Yields calls of `FenceFolder`, method and arguments; is sent their results.
Calls = Generator[tuple[str, ...], Any, Any]


@dataclasses.dataclass(frozen=True)
class Claim:
  """The right to write, of the life of run `stamp` that began in view `epoch`.

  Among lives of one run, the latest has the right.
  """

  stamp: str
  epoch: base.ViewId = base.ViewId(0)


class Found(NamedTuple):
  """The state of a fence.

  Attributes:
    claim: None if the folder is free.
    changed_ns: When `fence.json` was last changed, by the clock of the folder's
      server; 0 if there is none.
  """

  claim: Claim | None
  changed_ns: int


class _DamagedError(OSError):
  """A view's file is damaged, and not yet replaced."""


class FenceProtocol:
  """The order of reads and writes, as generators of calls; no I/O."""

  def __init__(self, where: str, now: Callable[[], float]) -> None:
    """Starts before the first read.

    Args:
      where: Name of the folder, for messages.
      now: Returns the time in seconds.
    """
    self._where, self._now = where, now
    self._damaged_secs: dict[str, float] = {}  # When found, by name.

  def read(self) -> Calls:
    """Reads the claim and the time of its last update from the folder."""
    file = yield "read", _NAME
    if file is None:
      return Found(None, 0)
    try:
      stamp = json_lib.from_plain(Claim, json.loads(file.text)).stamp
    except ValueError:  # A process died while writing it.
      stamp = ""
    begun = yield from self.views_after(f"{stamp}.lives")
    epoch = begun[-1].epoch if begun else views.EMPTY.epoch
    return Found(Claim(stamp, epoch), file.changed_ns)

  def create(self, stamp: str) -> Calls:
    """Claims a free folder; returns whether it did."""
    yield "create", _NAME, _render(Claim(stamp))
    claim, _ = yield from self.read()
    return claim is not None and claim.stamp == stamp

  def replace(self, stamp: str) -> Calls:
    """Takes the folder over from another run."""
    yield "replace", _NAME, _render(Claim(stamp))

  def begin(self, claim: Claim) -> Calls:
    """Fences earlier lives of a run, unless a later one has begun."""
    yield from self.create(claim.stamp)
    lives, found = f"{claim.stamp}.lives", (yield from self.read()).claim
    while found and found.stamp == claim.stamp and found.epoch < claim.epoch:
      number = base.ViewId(len((yield from self.views_after(lives))) + 1)
      life = views.View(number, (), "", epoch=claim.epoch)
      yield from self.claim_view(lives, life)
      found = (yield from self.read()).claim

  def claim_view(self, stamp: str, view: views.View) -> Calls:
    """Returns the view of this number: `view` if there was none."""
    yield "create", _find(stamp, view.number), _render(view)
    found = yield from self._read_view(stamp, view.number)
    if found is None:
      name = f"{self._where}/{_find(stamp, view.number)}"
      raise OSError(f"{name} is not there right after it was created.")
    return found

  def views_after(self, stamp: str, number: base.ViewId = views.EMPTY.number) -> Calls:
    """Returns the views of a run that follow one, in order.

    Stops at a damaged one; raises `OSError` if that is the first.
    """
    found: list[views.View] = []
    while True:
      try:
        view = yield from self._read_view(stamp, base.ViewId(number + len(found) + 1))
      except _DamagedError:
        if not found:
          raise
        return found
      if view is None:
        return found
      found.append(view)

  def beat(self, stamp: str) -> Calls:
    """Shows other runs that members of run `stamp` are alive.

    A claim that was removed is restored, but only beside views of the run: a
    folder without them may be the empty one below a mount that is away.
    """
    file = yield "read", _NAME
    if file is None and (yield from self.views_after(stamp)):
      yield "create", _NAME, _render(Claim(stamp))
    yield "touch", _NAME

  def _read_view(self, stamp: str, number: base.ViewId) -> Calls:
    """Returns a view, None if there is none; `OSError` if it is damaged."""
    error, attempt = None, 0
    while True:
      name = _find(stamp, number, attempt)
      next_name = _find(stamp, number, attempt + 1)
      try:
        file = yield "read", name
        if file is not None:
          view = _parse(file.text)
      except (OSError, ValueError) as failure:
        if isinstance(failure, OSError):
          yield "read", _NAME  # Else it is the folder that fails.
        error, attempt = failure, attempt + 1
        self._damaged_secs.setdefault(next_name, self._now())
        continue
      self._damaged_secs.pop(next_name, None)
      if file is not None:
        return view
      if error is None:
        return None
      if self._now() < self._damaged_secs[name] + VOID_SECS:
        if isinstance(error, OSError):  # It may be over soon.
          raise error
        damaged = _find(stamp, number, attempt - 1)
        raise _DamagedError(f"{self._where}/{damaged} is damaged: {error}.")
      last = base.ViewId(number - 1)
      before = yield from self._read_view(stamp, last)
      void = views.void(before or views.View(last, (), ""))
      yield "create", name, _render(void)


class File(NamedTuple):
  """Content of a file, and the time of its last change."""

  text: str
  changed_ns: int


class FenceFolder:
  """The files of a folder; all calls block, and raise `OSError`."""

  def __init__(self, path: pathlib.Path) -> None:
    self._path = path

  def read(self, name: str) -> File | None:
    try:
      with open(self._path / name, "rb") as file:  # NFS revalidates on open.
        changed_ns = os.fstat(file.fileno()).st_mtime_ns
        return File(file.read().decode(errors="replace"), changed_ns)
    except FileNotFoundError:
      return None

  def create(self, name: str, text: str) -> None:
    """Creates a file atomically, unless it exists."""
    try:
      self._create(self._path / name, text)
    except OSError as error:  # Names a temporary file, or on a full disk none.
      path = str(self._path / name)
      raise OSError(error.errno, error.strerror, path) from error

  def _create(self, path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=_NAME) as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())  # A name must not precede its content.
      try:
        os.link(file.name, path)
      except FileExistsError:
        return
    self._sync(path.parent)

  def replace(self, name: str, text: str) -> None:
    base.write_atomically(self._path / name, text)
    self._sync(self._path)

  def touch(self, name: str) -> None:
    os.utime(self._path / name)

  def _sync(self, folder: pathlib.Path) -> None:
    """Syncs the entries of a folder, and of the workdir."""
    for path in {folder, self._path}:
      fd = os.open(path, os.O_RDONLY)
      try:
        os.fsync(fd)
      finally:
        os.close(fd)


def _blocking(calls: Callable[..., Calls]) -> Callable[..., Any]:
  """Returns a method that carries out the calls of one of `FenceProtocol`."""

  @functools.wraps(calls)
  def block(self: "Fence", *args: Any) -> Any:
    return run(calls(self.protocol, *args), self.folder)

  return block


def run(calls: Calls, folder: Any) -> Any:
  """Carries out calls of a `FenceFolder`, and returns their final result."""
  answer = error = None
  while True:
    try:
      method, *args = calls.throw(error) if error else calls.send(answer)
    except StopIteration as end:
      return end.value
    answer = error = None
    try:
      answer = getattr(folder, method)(*args)
    except OSError as failure:  # It may be of one file.
      error = failure


class Fence:
  """The fence of a folder; all calls block, and raise `OSError`."""

  def __init__(self, folder: str | os.PathLike[str]) -> None:
    self._path = pathlib.Path(folder) / _NAME
    self._views = pathlib.Path(folder) / "views"
    self.folder = FenceFolder(pathlib.Path(folder))
    self.protocol = FenceProtocol(os.fspath(folder), time.monotonic)

  read = _blocking(FenceProtocol.read)
  create = _blocking(FenceProtocol.create)
  replace = _blocking(FenceProtocol.replace)
  begin = _blocking(FenceProtocol.begin)
  claim_view = _blocking(FenceProtocol.claim_view)
  views_after = _blocking(FenceProtocol.views_after)
  beat = _blocking(FenceProtocol.beat)

  def clear(self, found: Found, since_secs: float) -> None:
    """Clears the folder of a run that is over; the caller holds its lock.

    Waits until `BEAT_SECS` after `since_secs` of `time.monotonic`, the time of
    the `read` that returned `found`; ValueError if members are alive.
    """
    if found != (None, 0):
      time.sleep(max(0.0, since_secs + BEAT_SECS - time.monotonic()))
    if self.read() != found:
      raise ValueError(
          f"Members of a run are alive in {self._path.parent}; end them, or "
          "name another --workdir."
      )
    self.remove()
    if self._views.exists():
      shutil.rmtree(self._views)

  def remove(self) -> None:
    self._path.unlink(missing_ok=True)


def check(fence: Fence, stamp: str, epoch: base.ViewId = views.EMPTY.epoch) -> None:
  """Raises `base.FencedError` unless a life of a run still may write.

  Retries for a while if the folder cannot be read or is away, as agents do.
  """
  claim = Claim(stamp, epoch)
  base.ask_again(lambda: refuse(fence.read()[0], claim))


def refuse(found: Claim | None, claim: Claim) -> None:
  """Raises `base.FencedError` if `found` is of another run or a later life.

  Raises `FileNotFoundError` without a claim, which is no sign of another run.
  """
  if found is None:
    raise FileNotFoundError(
        f"There is no {_NAME} in the workdir. Was it removed, or is the folder " "not mounted?"
    )
  if found.stamp != claim.stamp:
    raise base.FencedError("The workdir now belongs to another run.")
  if found.epoch > claim.epoch:
    raise base.FencedError(
        f"The run restarted in view {found.epoch} without this node, as no "
        "member could be reached."
    )


def _find(stamp: str, number: base.ViewId, attempt: int = 0) -> str:
  """Returns the name of a view's file; of a later attempt if one is damaged."""
  attempts = f".{attempt}" if attempt else ""
  return f"views/{stamp}.{number}{attempts}.json"


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> views.View:
  return json_lib.from_plain(views.View, json.loads(text))


def _render(value: Claim | views.View) -> str:
  return json.dumps(json_lib.to_plain(value))
