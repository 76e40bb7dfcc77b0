"""The log of a run: `metrics.jsonl`, one JSON object per line.

A line describes a step ("step" is its number, from 1) or an event (it also has
"event", and the number of the step that it belongs to). Lines are only
appended, also by a member that takes over or by a run that is resumed. What was
done after the step of a "start" or a "rollback" is repeated later: `fold` leaves
it out. A crash can cut off a line, which readers ignore.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import json
import math
import os
import pathlib
from typing import Any, BinaryIO, NamedTuple

from absl import logging

Line = Mapping[str, Any]

START, ROLLBACK = "start", "rollback"
CUTS = (START, ROLLBACK)  # Later steps are repeated after these events.

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
      self, path: str | os.PathLike[str], *, on_error: Callable[[OSError], None] | None = None
  ) -> None:
    """Opens the file, created if absent.

    If `on_error` is given, `write_step` and `write_event` pass errors to it
    instead of raising, since a run need not end for a line of its log.
    """
    self.path = pathlib.Path(path)
    self._on_error = on_error
    # Unbuffered, so that each line is one write and a crash loses none.
    self._file = open(self.path, "a+b", buffering=0)
    self._unwritten = b""
    if self._file.seek(0, os.SEEK_END):
      self._file.seek(-1, os.SEEK_END)
      if self._file.read() != b"\n":
        self._unwritten = b"\n"  # Ends a line that a crash has cut off.

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

  def _write(self) -> None:
    try:
      written = self._file.write(self._unwritten)
    except OSError as e:
      raise OSError(e.errno, e.strerror, str(self.path)) from e
    size = len(self._unwritten)
    self._unwritten = self._unwritten[written:]
    if self._unwritten:
      raise OSError(f"Wrote only {written} of {size} bytes to {self.path}.")


class MetricsReader:
  """Reads lines incrementally, each once; a run may write millions."""

  def __init__(self, path: str | os.PathLike[str]) -> None:
    self._path = pathlib.Path(path)
    self._file: BinaryIO | None = None

  def read(self) -> tuple[Line, ...]:
    """Returns the lines since the last call, none while there is no file.

    They are as written, see `fold`. Raises like `read_lines`.
    """
    if self._file is None:
      if not self._path.exists():
        return ()
      self._file = open(self._path, "rb")
    begin = self._file.tell()
    whole, end, _ = self._file.read().rpartition(b"\n")
    self._file.seek(begin + len(whole + end))
    return _parse_lines(whole + end, self._path)

  def close(self) -> None:
    """Closes the file."""
    if self._file is not None:
      self._file.close()


def read_lines(path: str | os.PathLike[str]) -> tuple[Line, ...]:
  """Returns the complete lines that count, see `fold`, in their order.

  Raises `ValueError` for a line without "step", except one that was cut off.
  """
  return fold(_parse_lines(pathlib.Path(path).read_bytes(), path))


def fold(lines: Iterable[Line]) -> tuple[Line, ...]:
  """Returns lines without those of steps that were repeated later.

  A resumed run repeats the steps after its "start", and a "rollback" those after
  its step; the deaths and joins in these stay. If two members told one step, as
  the first died and the others did it again, the later line stands.
  """
  kept: list[Line] = []
  told: set[int] = set()
  for line in lines:
    event, step = line.get("event"), line["step"]
    if event is None and step in told:
      kept = [l for l in kept if l["step"] != step or "event" in l]
    if event in CUTS:
      stays = CUTS if event == START else (*CUTS, "recovery", "join")
      kept = [l for l in kept if l["step"] <= step or l.get("event") in stays]
      told = {one for one in told if one <= step}
    elif event is None:
      told.add(step)
    kept.append(line)
  return tuple(kept)


def _parse_lines(content: bytes, path: str | os.PathLike[str]) -> tuple[Line, ...]:
  lines = []
  for number, text in enumerate(content.split(b"\n")[:-1], start=1):
    try:
      line = json.loads(text)
      if not isinstance(line["step"], int):
        raise TypeError("step is not an integer")
    except (ValueError, TypeError, KeyError) as e:
      if isinstance(e, ValueError) and b'{"step"'.startswith(text[:7]):
        logging.warning("Line %d of %s was cut off by a crash.", number, path)
        continue
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
