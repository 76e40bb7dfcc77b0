"""The folder of the checkpoints of a run.

4.v1.2-8c1f.json                 manifest of the state after step 4; written last
4/v1.2-8c1f/node0/               what member 0 wrote for it, an item of Orbax
frozen/v1.1-8c1f/node0/          arrays that never change, written once in a run

Names are never used twice, and no folder is renamed. So other processes may write here at
any time, also one that was suspended between two system calls: what it completes late
has a smaller number, and is older. A damaged checkpoint is passed over, and never touched;
like any other it is removed once there are `keep` newer ones.
"""

from collections.abc import Callable, Mapping, Sequence
import errno
import functools
import os
import pathlib
import shutil

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    contents,
    manifest as manifest_lib,
    places,
)
from bamboo_jax.runtime.stage import spec as spec_lib

CheckpointName = manifest_lib.CheckpointName
_FROZEN = "frozen"


@functools.cache
def warn_once(text: str, process: int) -> None:
  """Warns of a checkpoint that cannot be used, once in a `process`, forks apart."""
  del process
  logging.warning("%s", text)


class CheckpointFolder:
  """The checkpoints in the folder `path`, made if needed, or at `url`; keeps `keep` complete ones.

  `check_fence` raises `base.FencedError` if this process must not write any
  more. Raises `base.CheckpointError` if the place cannot be used.

  Attributes:
    path: The folder; with a URL it has only what is being written or read.
    place: Where they are.
    attempt: The greatest number of a save that this process knows of.
  """

  def __init__(
      self,
      path: str | os.PathLike[str],
      *,
      keep: int,
      check_fence: Callable[[], None],
      url: str = "",
  ) -> None:
    self.path = pathlib.Path(path).absolute()
    self.place = places.open_place(self.path, url)
    self.attempt = 0
    self._keep = max(keep, self.place.least_kept)
    self._check_fence = check_fence
    self._passed_over: set[CheckpointName] = set()  # Damaged, or of steps that are done again.
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      self._find()
    except OSError as error:
      raise base.CheckpointError(
          f"Cannot keep checkpoints in {self.place.where}: {contents.describe_error(error)}."
      ) from error

  def steps(self) -> tuple[base.StepId, ...]:
    """Returns the steps with a complete checkpoint, oldest first.

    Compares sizes of files without reading contents. Warns of newer incomplete
    ones.
    """
    return tuple(name.step for name, _ in self._complete())

  def read(
      self, step: base.StepId, like: Mapping[str, spec_lib.LayerState], names: Sequence[str]
  ) -> contents.CheckpointContents:
    """Reads a checkpoint; see `contents.read`.

    This process uses no damaged one again, nor any of a later step.
    """
    self.pass_over(step)
    for name in reversed(self._find()):
      if name.step == step and name not in self._passed_over:
        try:
          manifest = self.place.read(name)
          with self.place.having(manifest, manifest.find_items(names)) as root:
            return contents.read(root / name.file, manifest, like, names)
        except base.DamagedCheckpointError as error:
          self._passed_over.add(name)
          logging.warning("%s It is left as it is; an older one is used.", error)
          raise
    raise base.DamagedCheckpointError(
        f"There is no checkpoint of step {step} in {self.place.where}."
    )

  def pass_over(self, after: base.StepId) -> None:
    """Uses no checkpoint after a step any more: training begins again from there."""
    self._passed_over |= {name for name in self._find() if name.step > after}

  def newest(self) -> manifest_lib.Manifest | None:
    """Returns the manifest of the newest checkpoint."""
    return next((manifest for _, manifest in reversed(self._complete())), None)

  def write_part(
      self,
      name: CheckpointName,
      item: str,
      layers: Mapping[str, Mapping[str, np.ndarray]],
      *,
      is_frozen: bool = False,
  ) -> manifest_lib.Manifest:
    """Writes arrays by layer and name, as `item` of the unfinished checkpoint `name`; blocks.

    Returns the manifest of this part, once all is on disk. Raises `OSError` or `ValueError`
    if it cannot be written.
    """
    where = f"{_FROZEN if is_frozen else name.step}/{name.save}/{item}"
    path = self.path / where
    try:
      self.path.mkdir(exist_ok=True)
      if isinstance(self.place, places.BucketPlace):  # What a process of this machine has left.
        places.remove_before(places.LocalPlace(self.path), name)
      # A write would fail too, but only after it has filled the disk that others use.
      needed = sum(a.nbytes for arrays in layers.values() for a in arrays.values())
      if (free := shutil.disk_usage(self.path).free) < needed:
        room = f"{needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {room}")
      path.parent.mkdir(parents=True, exist_ok=True)
      contents.write_item(path, layers)
      files = self.place.keep(where)
    except (OSError, ValueError):
      for left in (where, f"{where}.*"):  # Makes room.
        places.LocalPlace(self.path).remove(left)
      raise
    entries = {
        layer: manifest_lib.LayerEntry(
            where, layer_arrays.sha256(arrays), layer_arrays.specs_of(arrays)
        )
        for layer, arrays in layers.items()
    }
    if is_frozen:
      return manifest_lib.Manifest(name.step, {}, {}, files, entries)
    return manifest_lib.Manifest(name.step, {}, entries, files)

  def finish(
      self, name: CheckpointName, manifest: manifest_lib.Manifest, *, keeps: bool = False
  ) -> None:
    """Makes the checkpoint `name` complete; removes old ones, unless it `keeps` them.

    Raises `OSError`, or `base.FencedError`.
    """
    self.place.complete(name, manifest, self._check_fence)
    if keeps:
      return
    try:
      kept = self._complete()[-self._keep :]
      for old in self._find():
        if kept and old < kept[0][0]:  # None are if they cannot be read now.
          self._check_fence()
          self.place.remove(old.file)
          if not old.incarnation:
            self.place.remove(f"{old.step}/node*")
      self.remove_unfinished(name)
    except OSError as error:  # The next save removes them.
      logging.warning("Cannot remove old checkpoints: %s.", contents.describe_error(error))

  def remove_unfinished(self, before: CheckpointName) -> None:
    """Removes what earlier saves have left and no checkpoint has; warns if it cannot."""
    used = set[str]()
    for name in self._find():
      try:
        frozen = self.place.read(name).frozen.values()
      except base.CheckpointError:
        return  # Maybe others see all of its files: what it needs is not known now.
      used |= {f"{name.step}/{name.save}", *(e.item.rpartition("/")[0] for e in frozen)}
    places.remove_before(self.place, before, used)

  def _find(self) -> list[CheckpointName]:
    names = self.place.find()
    self.attempt = max([self.attempt, *(name.attempt for name in names)])
    return names

  def _complete(self) -> list[tuple[CheckpointName, manifest_lib.Manifest]]:
    """Returns the checkpoints to use, oldest first.

    If a step was saved again, or an earlier one after it, training began again from
    there: what was saved before is not of this run any more.
    """
    found: list[tuple[CheckpointName, manifest_lib.Manifest]] = []
    for name in reversed(self._find()):
      if name in self._passed_over or (found and name.step >= found[-1][0].step):
        continue
      try:
        found.append((name, self.place.read(name)))
      except base.CheckpointError as error:
        if not found:
          warn_once(f"{error}", os.getpid())
    return found[::-1]
