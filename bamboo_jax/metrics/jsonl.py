"""The log of a run: `metrics.jsonl`, one JSON object per line.

A line describes a step ("step" is its number, from 1) or an event (it also has
"event", and the number of the step that it belongs to). Lines are only
appended; a crash can truncate the last one, which readers ignore and a resumed
run removes.
"""

from collections.abc import Callable, Mapping, Sequence
import json
import math
import os
import pathlib
from typing import Any, BinaryIO, NamedTuple

from bamboo_jax import base

Line = Mapping[str, Any]

# In lines of steps; the user's own metrics have other names.
_RESERVED = frozenset(
    "step event loss learning_rate bubble_pct step_ms mfu_pct goodput_pct usd account grad_norm"
    " samples_seen samples_dropped phase_ms view redundant".split()
)


def is_reserved(name: str) -> bool:
  """Returns whether a metric of a step is one of the package."""
  return name in _RESERVED or name.endswith("_per_sec")


class MetricsWriter:
  """Appends lines to a file; written to the system when a call returns."""

  def __init__(
      self,
      path: str | os.PathLike[str],
      *,
      resumed_from_step: int = 0,
      on_error: Callable[[OSError], None] | None = None,
  ) -> None:
    """Opens the file, created if absent; `ValueError` if it is not a log.

    A resumed run writes later steps again, so lines of steps after
    `resumed_from_step` are removed first. If `on_error` is given, `write_step`
    and `write_event` pass errors to it instead of raising, since a run need not
    end for a line of its log.
    """
    self.path = pathlib.Path(path)
    self._on_error = on_error
    self._unwritten = b""
    self._open(resumed_from_step)

  def forget_after(self, step: int) -> None:
    """Removes the lines of steps after `step`, which will be written again."""
    self.close()
    self._open(step)

  def write_step(self, step: int, values: Mapping[str, Any]) -> None:
    """Appends metrics by name, with units in the names.

    They are numbers of Python or numpy, strings, lists and dicts; NaN and
    infinity become null. Raises `OSError` if a line is not completely written;
    the next call writes the rest first.
    """
    self._unwritten += _render({"step": step, **values}).encode()
    try:
      self._write()
    except OSError as error:
      if self._on_error is None:
        raise
      self._on_error(error)

  def write_event(self, event: str, *, step: int, values: Mapping[str, Any] | None = None) -> None:
    """Appends an event, such as "eval" or "recovery", like `write_step`."""
    self.write_step(step, {"event": event, **(values or {})})

  def close(self) -> None:
    """Closes the file; idempotent.

    Raises `OSError` if a line that could not be written before is lost.
    """
    try:
      if self._unwritten:
        self._write()
    finally:
      self._unwritten = b""
      self._file.close()

  def _open(self, last_step: int) -> None:
    if self.path.exists():
      kept = [l for l in read_lines(self.path) if l["step"] <= last_step]
      base.write_atomically(self.path, "".join(map(_render, kept)))
    # Unbuffered, so that each line is one write and a crash loses none.
    self._file = open(self.path, "ab", buffering=0)

  def _write(self) -> None:
    try:
      written = self._file.write(self._unwritten)
    except OSError as e:
      raise OSError(e.errno, e.strerror, str(self.path)) from e
    size = len(self._unwritten)
    self._unwritten = self._unwritten[written:]
    if self._unwritten:
      raise OSError(f"Wrote only {written} of {size} bytes to {self.path}.")


class NewLines(NamedTuple):
  """The lines since the last call, and whether the file was replaced."""

  is_replaced: bool
  lines: tuple[Line, ...]


class MetricsReader:
  """Reads lines incrementally, each once; a run may write millions."""

  def __init__(self, path: str | os.PathLike[str]) -> None:
    self._path = pathlib.Path(path)
    self._file: BinaryIO | None = None  # Keeps its inode number.

  def read(self) -> NewLines:
    """Returns the lines since the last call; of a replaced file, all lines.

    Raises like `read_lines`.
    """
    found = os.stat(self._path).st_ino
    file = self._file
    is_new = file is None or os.fstat(file.fileno()).st_ino != found
    if file is None or is_new:
      self.close()
      file = self._file = open(self._path, "rb")
    begin = file.tell()
    whole, end, _ = file.read().rpartition(b"\n")
    file.seek(begin + len(whole + end))
    return NewLines(is_new, _parse_lines(whole + end, self._path))

  def close(self) -> None:
    """Closes the file."""
    if self._file is not None:
      self._file.close()


def read_lines(path: str | os.PathLike[str]) -> tuple[Line, ...]:
  """Returns all complete lines, in the order in which they were written.

  Raises `ValueError` for a line without "step", except a truncated last one.
  """
  return _parse_lines(pathlib.Path(path).read_bytes(), path)


def _parse_lines(content: bytes, path: str | os.PathLike[str]) -> tuple[Line, ...]:
  lines = []
  for number, text in enumerate(content.split(b"\n")[:-1], start=1):
    try:
      line = json.loads(text)
      if not isinstance(line["step"], int):
        raise TypeError("step is not an integer")
    except (ValueError, TypeError, KeyError) as e:
      raise ValueError(
          f"Line {number} of {path} is not a JSON object with a number 'step': " f"{text[:80]!r}."
      ) from e
    lines.append(line)
  return tuple(lines)


class Series(NamedTuple):
  """Values of a metric, and the steps that they belong to."""

  steps: tuple[int, ...] = ()
  values: tuple[Any, ...] = ()


def column(lines: Sequence[Line], name: str, *, event: str | None = None) -> Series:
  """Returns the non-null values of `name`, of steps or of an `event`."""
  found = [
      (line["step"], line[name])
      for line in lines
      if line.get("event") == event and line.get(name) is not None
  ]
  return Series(*map(tuple, zip(*found, strict=True))) if found else Series()


def _render(line: Line) -> str:
  return json.dumps(_plain(line), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
  if isinstance(value, Mapping):
    return {str(key): _plain(entry) for key, entry in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(entry) for entry in value]
  if hasattr(value, "tolist"):  # A numpy array or scalar.
    return _plain(value.tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
