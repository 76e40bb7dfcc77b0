"""A fence around the files of a run: which life of which run may write them.

`WORKDIR/fence.json` holds the stamp that the run has in its store. Each of its
lives has an epoch, the number of the view without members from which it began.
Whoever finds another stamp, or a later epoch, commits and writes nothing more.
The time of the file moves as long as members live; so nobody takes over a
folder, or ends a run, of which it merely hears nothing.

`WORKDIR/views` has a file for each view, which whoever makes one creates first:
so there is one of each number, whoever can reach the store. So it has for each
life: one who was away meanwhile does not put an earlier one over it.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
import time
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views

BEAT_SECS = 4.0  # In which members who live show that.
_NAME = "fence.json"


@dataclasses.dataclass(frozen=True)
class Claim:
  """Who may write: a life of a run; of one run the last to begin."""

  stamp: str
  epoch: int = 0


class Fence:
  """The fence of a folder; all calls block, and raise `OSError`."""

  def __init__(self, folder: str | os.PathLike[str]) -> None:
    self._path = pathlib.Path(folder) / _NAME
    self._views = pathlib.Path(folder) / "views"

  def read(self) -> tuple[Claim | None, int]:
    """Returns who may write, None if nobody has said so; and the time."""
    try:
      with open(self._path) as file:  # A share looks at its server then.
        content, moved = file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
      return None, 0
    try:
      stamp = json_lib.from_plain(Claim, json.loads(content)).stamp
    except ValueError:  # Somebody has died while he wrote it.
      stamp = ""
    begun = self.views_after(f"{stamp}.lives", 0)
    return Claim(stamp, begun[-1].epoch if begun else 0), moved

  def create(self, stamp: str) -> bool:
    """Claims a folder that nobody has claimed; returns whether it did."""
    return _create(self._path, _render(Claim(stamp)))

  def replace(self, stamp: str) -> None:
    """Takes the folder over."""
    base.write_atomically(self._path, _render(Claim(stamp)))

  def begin(self, claim: Claim) -> None:
    """Shuts out earlier lives of a run, unless a later one has begun."""
    self.create(claim.stamp)
    lives, found = f"{claim.stamp}.lives", self.read()[0]
    while found.stamp == claim.stamp and found.epoch < claim.epoch:
      number = len(self.views_after(lives, 0)) + 1
      life = views.View(number, (), "", epoch=claim.epoch)
      self.claim_view(lives, life)
      self.beat()
      found = self.read()[0]

  def clear(self, found: tuple[Claim | None, int], since_secs: float) -> None:
    """Takes the folder from a run that is over; only for who holds its lock.

    Waits until `BEAT_SECS` after `since_secs` of `time.monotonic`, when `read`
    has `found` what was there; ValueError if members show that they live.
    """
    if found != (None, 0):
      time.sleep(max(0.0, since_secs + BEAT_SECS - time.monotonic()))
    if self.read() != found:
      raise ValueError(
          f"Members of a run live in {self._path.parent}; end them, or name "
          "another --workdir."
      )
    self.remove()
    if self._views.exists():
      shutil.rmtree(self._views)

  def remove(self) -> None:
    """Leaves the folder to nobody."""
    self._path.unlink(missing_ok=True)

  def claim_view(self, stamp: str, view: views.View) -> views.View:
    """Returns the view of this number: `view` if there was none."""
    _create(self._find(stamp, view.number), _render(view))
    return self.views_after(stamp, view.number - 1)[0]

  def views_after(self, stamp: str, number: int) -> list[views.View]:
    """Returns the views of a run that follow one, in order."""
    found: list[views.View] = []
    while True:
      path = self._find(stamp, number + len(found) + 1)
      try:
        found.append(json_lib.from_plain(views.View, _read(path)))
      except FileNotFoundError:
        return found

  def _find(self, stamp: str, number: int) -> pathlib.Path:
    return self._views / f"{stamp}.{number}.json"

  def beat(self) -> None:
    """Shows those who cannot hear the members that they live."""
    os.utime(self._path)


def check(fence: Fence, claim: Claim) -> None:
  """Raises `base.FencedError` if others than `claim` may write.

  A folder that cannot be read is asked again for a while, as agents do.
  """
  found, _ = base.ask_again(fence.read)
  if found is None or found.stamp != claim.stamp:
    raise base.FencedError("The workdir is that of another run now.")
  if found.epoch > claim.epoch:
    raise base.FencedError(
        f"The run began anew in view {found.epoch}, without this node: its "
        "members were neither heard nor seen to live."
    )


def _create(path: pathlib.Path, text: str) -> bool:
  """Creates a file, unless there is one; nobody ever sees half of it."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=_NAME) as file:
    file.write(text)
    file.flush()
    try:
      os.link(file.name, path)
    except FileExistsError:
      return False
  return True


def _read(path: pathlib.Path) -> Any:
  try:
    return json.loads(path.read_text())
  except ValueError as error:
    raise OSError(f"{path} is damaged: {error}.") from error


def _render(value: Claim | views.View) -> str:
  return json.dumps(json_lib.to_plain(value))
