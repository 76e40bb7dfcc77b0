"""The checkpoints of a run: each member writes the stages that it hosts.

A member is a process; a single one writes everything. A save is written in a thread, while
training continues; its manifest, which is written last, makes it a checkpoint. So if a
process is killed at any time, a checkpoint is complete, or it is not used. Parameters that
are not finite are never written, as they would soon replace all finite ones. Weights that
are never trained, as with LoRA, are written by the first save of a run.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
import dataclasses
import errno
import itertools
import os
import secrets
import time
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    contents,
    folder as folder_lib,
    identity as identity_lib,
    manifest as manifest_lib,
    parts,
)
from bamboo_jax.models import layer as layer_lib
from bamboo_jax.runtime.stage import spec as spec_lib

_WAIT_SECS = 0.1  # Between two calls of `waiting` while a save is written.
_MOST_TRIES = 2  # Attempts of the save at the end.


_Layers = Mapping[str, spec_lib.LayerState]  # By name.
_Arrays = Mapping[str, Mapping[str, np.ndarray]]  # By layer and name.


class _NotFiniteError(ValueError):
  """The state has numbers that must not replace finite ones."""


class Writer:
  """One member's part in the checkpoints of a run.

  All members use the same folder, and get the same reports in the same order.
  Call `close` at the end: a save that is in flight when the interpreter exits
  may be lost.

  Attributes:
    changes: Settings that differ from those of the checkpoint restored last.
    uploaded: The last checkpoint that went to a bucket, on the member that joined its parts.
    num_skipped: Skipped steps in a row at its end.
    rate: Of this member's last part, in bytes per second; 0 before it has written one.
  """

  def __init__(
      self,
      directory: str | os.PathLike[str],
      *,
      keep: int,
      every_steps: int,
      member: base.NodeId,
      model: spec_lib.StageSpec,
      identity: identity_lib.RunIdentity,
      warn: Callable[[base.StepId, str], None],
      check_fence: Callable[[], None],
      weights: Callable[[str], layer_lib.Variables] | None = None,
      url: str = "",
      push: Callable[[bool], None] = lambda is_writer: None,
  ) -> None:
    """Opens the folder, or raises `base.CheckpointError`.

    Args:
      directory: Folder of the checkpoints; made if needed. No other program may
        write to it.
      keep: Number of checkpoints to keep, at least 1; older ones are removed
        once a newer one is complete.
      every_steps: Steps between two saves; 0 for none but the last.
      model: The model as one stage.
      warn: Called with a step and one line when a save has failed or is
        skipped, on the member that joins the parts.
      check_fence: Raises `base.FencedError` if other processes own the folder.
        Called in the writing thread, before a checkpoint becomes complete and
        before one is removed.
      weights: Returns those of a layer from which the run begins; None: from the seed.
      url: Place in a bucket, where the checkpoints are instead.
      push: Called in the thread once this member has written its part, and whether it has
        joined all of them; may raise `OSError`.
    """
    self._folder = folder_lib.CheckpointFolder(
        directory, keep=keep, check_fence=check_fence, url=url
    )
    self._push, self._is_in_bucket = push, bool(url)
    self._num_bytes, self._secs = 0, 0.0  # Of the last part, and the time that it took.
    self._every_steps = every_steps
    self._member = member
    self._model = model
    self._identity = identity
    self._warn_of = warn
    self._weights = weights
    self._incarnation = secrets.token_hex(3)
    self._saved: base.StepId | None = None  # That this member has joined, or restored.
    self._frozen: dict[str, manifest_lib.LayerEntry] = {}  # That a checkpoint has.
    self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
    self._save: parts.Save | None = None  # The save whose parts are missing.
    self._heard: dict[base.NodeId, parts.PartsReport] = {}  # Of its parts that are written.
    self._writing: futures.Future[manifest_lib.Manifest] | None = None  # This member's part.
    self._joining: tuple[parts.Save, futures.Future[None]] | None = None
    self._error = ""
    self._num_late = 0  # Saves that were skipped.
    self.changes: tuple[identity_lib.ChangedSetting, ...] = ()
    self.uploaded: dict[str, Any] = {}
    self.num_skipped = 0
    self.rate = 0.0

  def steps(self) -> tuple[base.StepId, ...]:
    """Returns the steps with a complete checkpoint, oldest first.

    Waits for the save whose parts this member joins, or that it writes alone.
    Warns of newer incomplete ones. Compares sizes of files without reading
    contents. Retries for a while if the folder cannot be read.
    """
    self._end_joining(blocks=True)
    return base.ask_again(self._folder.steps)

  def restore(self, step: base.StepId, layers: Sequence[str]) -> dict[str, spec_lib.LayerState]:
    """Returns the state of some layers; reads the arrays of no others.

    `step` is one of `steps`, or 0 for the state before the first step. Later
    checkpoints are not used any more.

    Raises `base.DamagedCheckpointError` if the checkpoint is incomplete or
    damaged; then it is not used again. Raises `base.CheckpointError` if it is temporarily
    unreadable, or of another model, optimizer or run; names the difference.
    """
    names = self._model.model.layer_names
    self.num_skipped, self._saved = 0, None  # What was saved is passed over.
    if step == 0:
      base.ask_again(lambda: self._folder.pass_over(step))
      states: dict[str, Any] = {}
      units = self._model.single_layers
      for index in map(names.index, layers):
        states |= spec_lib.init_layers(units[index], self._weights)
      return states
    shapes = self._model.state
    states, meta = base.ask_again(lambda: self._folder.read(step, shapes, layers))
    self.changes = self._identity.check(meta, step=step, where=self._folder.place.where)
    self.num_skipped, self._saved = meta.get("num_skipped", 0), step
    return states

  # During training.

  def say(self, step: base.StepId, *, after: base.StepId) -> parts.PartsReport:
    """Returns this member's report for the vote; a save begins if one is due since `after`."""
    return self._say(begins=parts.is_due(step, after, self._every_steps))

  #  step   member 0 (writer)      member 3               disk
  #  4      vote: begins           vote                   2
  #           `------ hear -----------'                           1. as 0 says
  #         copy to host           copy to host
  #         thread: its stages     thread: its stages     4/v1.7-8c1f/node0, node3
  #  5      vote: node0            vote: nothing yet             2. none waits
  #  6      vote: node0            vote: node3
  #           `------ hear -----------'                           3. all parts
  #         thread: manifest                              4.v1.7-8c1f.json   4. complete
  #         thread: remove old                            (2)
  #
  # A death before 3 abandons the save: members may have different votes. A part
  # that failed ends it, too. A writer that owns all stages skips 3.

  def hear(
      self,
      step: base.StepId,
      said: Mapping[base.NodeId, parts.PartsReport],
      *,
      view: base.ViewId,
      owners: Sequence[Sequence[base.NodeId]],
      states: Mapping[base.StageId, _Layers],
  ) -> None:
    """Handles the reports of all members, right after the commit of a step.

    If a save is due, copies state to host memory, which blocks until the state
    is computed, and until this member has joined the previous save. The rest
    is done in a thread.

    Args:
      step: Number of committed steps.
      said: The results of `say`, by member.
      owners: The member that hosts each stage, by pipeline.
      states: State of the stages that this member hosts, after `step` steps;
        used only if a save is due.
    """
    self._hear(said)
    save = parts.plan_save(said, step, view=view, owners=owners)
    if save is None:
      return
    if save.is_alone or not said[save.writer].is_busy:
      self._begin(save, states)
    elif self._member == save.writer:
      self._num_late += 1
      if self._num_late == 1:
        text = f"The save of step {step} is skipped: the previous one still runs."
        self._warn_of(step, f"{text} Others like it are counted at the end.")

  def measure(self, layers: Mapping[str, Any]) -> int:
    """Returns the size in bytes of layers in the next part, from their states or shapes."""
    shapes = {name: layer_arrays.shapes_of(state) for name, state in layers.items()}
    return sum(
        shape.size * shape.dtype.itemsize
        for layer, arrays in shapes.items()
        for name, shape in arrays.items()
        if layer not in self._frozen or name not in self._frozen[layer].arrays
    )

  @property
  def bytes_in_flight(self) -> int:
    """Size of the part that this member still writes, 0 without one."""
    writing = self._writing or self._joining and self._joining[1]
    return self._num_bytes if writing and not writing.done() else 0

  def abandon(self) -> None:
    """Abandons the save that waits for parts; call when a member is lost."""
    self._save = self._writing = None

  # At the end.

  def save_last(
      self,
      step: base.StepId,
      gather: Callable[[str, parts.PartsReport], Mapping[base.NodeId, parts.PartsReport]],
      *,
      view: base.ViewId,
      owners: Sequence[Sequence[base.NodeId]],
      states: Mapping[base.StageId, _Layers],
      waiting: Callable[[], None],
      num_skipped: int = 0,
      leaving: Collection[base.NodeId] = (),
  ) -> None:
    """Saves the state at the end, unless already saved; blocks on all members.

    Removes no older one after `num_skipped` skipped steps in a row. `gather`
    exchanges values with all members, see `Cohort.gather`; after an exception
    of it, this may be called again. `waiting` is called every 0.1 s while this
    member waits. Members that are `leaving` write as little as possible. For the
    other arguments see `hear`.

    Raises `base.CheckpointError` on all members if it cannot be saved.
    """
    tried = 0
    for turn in itertools.count():
      self._wait(waiting)
      self._end_joining(blocks=True)
      said = gather(f"{step} {turn}", self._say(begins=self._saved != step))
      self._hear(said)
      save = parts.plan_save(
          said, step, view=view, owners=owners, num_skipped=num_skipped, leaving=leaving
      )
      if save is None:
        return
      report = said[save.writer]
      if report.is_busy:
        continue
      if tried == _MOST_TRIES:
        last = max(self.steps(), default=0)
        kept = f"The last checkpoint is of step {last}" * bool(last)
        raise base.CheckpointError(
            f"{report.error} {kept or 'There is no checkpoint'}; once this "
            "is mended (a full disk needs room), the same command trains the "
            "missing steps again."
        )
      self._begin(save, states)
      tried += 1

  def close(self) -> None:
    """Blocks until this member has written its part; ends the thread."""
    self._thread.shutdown()
    self._end_joining(blocks=True)
    if self._num_late > 1:
      logging.warning("%d saves were skipped, as the previous one still ran.", self._num_late)

  def _say(self, *, begins: bool) -> parts.PartsReport:
    self._end_joining(blocks=False)
    is_busy = self._save is not None or self._joining is not None
    name = f"{self._folder.attempt + 1}-{self._incarnation}" if begins else ""
    if self._save and self._writing and self._writing.done():
      error, save = _describe(self._writing), str(self._save.name)
      part = None if error else self._writing.result()
      return parts.PartsReport(name, is_busy, save, part, error, self._num_bytes, self._secs)
    return parts.PartsReport(name, is_busy, error=self._error)

  def _hear(self, said: Mapping[base.NodeId, parts.PartsReport]) -> None:
    """Ends the save once all parts are reported, or one has failed."""
    if any(report.error for report in said.values()):
      self._frozen = {}  # The next save looks where they are.
    for member, report in said.items():
      if self._save is None or report.save != str(self._save.name):
        continue
      if report.part is None:
        self._fail(self._save, f"{logs.name_of(member)}: {report.error}")
        self.abandon()
      else:
        self._heard[member] = report
    if self._save and self._save.stages.keys() <= self._heard.keys():
      if self._member == self._save.writer:
        written = [report.part for report in self._heard.values() if report.part]
        self._joining = self._save, self._thread.submit(self._join, self._save, written)
      self._save = self._writing = None

  def _begin(self, save: parts.Save, states: Mapping[base.StageId, _Layers]) -> None:
    self._end_joining(blocks=True)
    self._folder.attempt = max(self._folder.attempt, save.name.attempt)
    self._save = None if save.is_alone else save
    self._heard, self._writing, self._error = {}, None, ""
    layers: dict[str, Any] = {}
    for stage in save.stages.get(self._member, ()):
      layers |= states[stage]
    omitted = {name: entry.arrays for name, entry in self._frozen.items()}
    arrays = layer_arrays.copy_to_host(layers, omitted)
    self._num_bytes, self._secs = spec_lib.nbytes(arrays), 0.0
    is_writer = self._member == save.writer
    if save.is_alone and is_writer:
      alone = lambda: self._join(save, [self._write(save, arrays)])
      self._joining = save, self._thread.submit(alone)
    elif arrays or is_writer:
      self._writing = self._thread.submit(self._write, save, arrays)

  def _end_joining(self, *, blocks: bool) -> None:
    """Ends the save that this member joins, if there is one."""
    if self._joining is not None and (blocks or self._joining[1].done()):
      save, error = self._joining[0], _describe(self._joining[1])  # May be interrupted, repeated.
      self._joining = None
      if error:
        self._fail(save, error)
      else:
        self._saved = save.name.step
        uploads = [(report.num_bytes, report.secs) for report in self._heard.values()]
        if self._is_in_bucket:
          uploads = uploads or [(self._num_bytes, self._secs)]
          self.uploaded = parts.describe_uploads(save.name.step, uploads)

  def _fail(self, save: parts.Save, error: str) -> None:
    step = save.name.step
    self._error = f"Cannot save step {step} to {self._folder.place.where}: {error}."
    if self._member == save.writer:
      self._warn_of(step, self._error)

  def _wait(self, waiting: Callable[[], None]) -> None:
    """Blocks until this member has written its part."""
    pending: set[futures.Future[Any]] = {self._joining[1]} if self._joining else set()
    pending |= {self._writing} if self._writing else set()
    while pending:
      waiting()
      pending = futures.wait(pending, timeout=_WAIT_SECS).not_done

  # In the thread.

  def _write(self, save: parts.Save, layers: _Arrays) -> manifest_lib.Manifest:
    item, since_secs = f"node{self._member}", time.perf_counter()
    if name := layer_arrays.find_nonfinite(layers):
      raise _NotFiniteError(f"{name} is not finite everywhere")
    if self._member == save.writer:
      self._folder.remove_unfinished(save.name)
    trained, frozen = self._divide(layers)
    stored = self._store_frozen(save.name, item, frozen)
    part = self._folder.write_part(save.name, item, trained)
    if num_bytes := spec_lib.nbytes(layers):
      self._secs = time.perf_counter() - since_secs
      self.rate = num_bytes / self._secs
    if self._member != save.writer:
      self._push_files(is_writer=False)
    found = {layer: entry for layer, entry in stored.frozen.items() if layer in layers}
    return dataclasses.replace(part, frozen=found, files={**part.files, **stored.files})

  def _divide(self, layers: _Arrays) -> tuple[_Arrays, _Arrays]:
    """Returns the arrays that change, and the others, of layers that have such arrays."""
    trained, frozen = {}, {}
    for layer in self._model.layers:
      if (arrays := layers.get(layer.name)) is not None:
        own = f"params/{layer.trained}"
        rest = {
            name: array
            for name, array in arrays.items()
            if name.startswith("params/") and not name.startswith(own)
        }
        trained[layer.name] = {name: a for name, a in arrays.items() if name not in rest}
        if rest:
          frozen[layer.name] = rest
    return trained, frozen

  def _store_frozen(
      self, name: manifest_lib.CheckpointName, item: str, layers: _Arrays
  ) -> manifest_lib.Manifest:
    """Returns where all frozen arrays are; writes those of `layers` that no checkpoint has."""
    nothing = manifest_lib.Manifest(name.step, {}, {}, {})
    newest = (self._folder.newest() if layers or self._frozen else None) or nothing
    if not self._frozen.items() <= newest.frozen.items():
      raise OSError(errno.ENOENT, "the checkpoints with the frozen weights are gone")
    same = {
        layer: entry
        for layer, entry in newest.frozen.items()
        if layer in layers and entry.sha256 == layer_arrays.sha256(layers[layer])
    }
    self._frozen = {**self._frozen, **same}
    new = {layer: arrays for layer, arrays in layers.items() if layer not in same}
    part = self._folder.write_part(name, item, new, is_frozen=True) if new else nothing
    files = {path: size for path, size in newest.files.items() if path.startswith("frozen/")}
    return dataclasses.replace(
        part, frozen={**self._frozen, **part.frozen}, files={**files, **part.files}
    )

  def _join(self, save: parts.Save, written: Collection[manifest_lib.Manifest]) -> None:
    facts: dict[str, Any] = {"save": f"{save.name}"}
    if save.num_skipped:
      facts["num_skipped"] = save.num_skipped
    whole = manifest_lib.join(
        written,
        order=self._model.model.layer_names,
        meta=self._identity.describe(save.name.step) | facts,
    )
    self._folder.finish(save.name, whole, keeps=bool(save.num_skipped))
    self._push_files(is_writer=True)

  def _push_files(self, *, is_writer: bool) -> None:
    try:
      self._push(is_writer)
    except OSError as error:  # The next save puts them.
      logging.warning("%s", error)


def _describe(ended: futures.Future[Any]) -> str:
  """Waits; returns why a part or a checkpoint could not be written, "" if it was."""
  error = ended.exception()
  if isinstance(error, _NotFiniteError | base.FencedError):
    return str(error).rstrip(".")
  if isinstance(error, (OSError, ValueError)):
    return contents.describe_error(error)
  if error is not None:
    raise error
  return ""
