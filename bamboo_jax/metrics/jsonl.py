"""The log of a run, `metrics.jsonl`, and of its nodes: one JSON object per line.

A line describes a step ("step" is its number, from 1) or an event (it also has
"event", and the number of the step that it belongs to). Lines are only
appended, by any member. What was done after the step of a "start" or a
"rollback" is repeated later: `fold` leaves it out. A line also has the member
that wrote it, and its "life", a number that grows whenever a run is started
again. Readers ignore lines that a crash has cut off, and those of an older life
that stand after newer ones: the two wrote at once.
"""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import fcntl
import json
import os
import pathlib
import time
from typing import Any

from absl import logging
import msgspec

from bamboo_jax import base

Line = Mapping[str, Any]

_BEGIN = b'{"step"'  # Of every line.
START, ROLLBACK = "start", "rollback"
CUTS = (START, ROLLBACK)  # Later steps are repeated after these events.

# In lines of steps; the user's own metrics have other names.
_RESERVED = frozenset(
    "step event life member loss learning_rate bubble_pct step_ms mfu_pct goodput_pct usd account"
    " grad_norm samples_seen samples_dropped phase_ms view redundant".split()
)


def is_reserved(name: str) -> bool:
  """Returns whether a metric of a step is one of the package."""
  return name in _RESERVED or name.endswith("_per_sec")


class MetricsWriter:
  """Appends lines to a file; written to the system when a call returns."""

  def __init__(
      self, path: str | os.PathLike[str], *, life: int = 1, member: str = "", locks: bool = False
  ) -> None:
    """Opens the file, created if absent; `life` and `member` are put into all lines.

    If it `locks`, it has a shared lock on the file until it is closed, and nobody replaces it.
    """
    self.path = pathlib.Path(path)
    self._stamp = {"life": life, "member": member}
    while True:
      # Unbuffered, so that each line is one write and a crash loses none.
      self._file = open(self.path, "a+b", buffering=0)
      if not locks:
        break
      fcntl.flock(self._file, fcntl.LOCK_SH)
      if os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path)):
        break
      self._file.close()  # It was replaced before it was locked.
    self._unwritten = b""
    if self._file.seek(0, os.SEEK_END):
      self._file.seek(-1, os.SEEK_END)
      if self._file.read() != b"\n":
        self._unwritten = b"\n"  # Ends a line that a crash has cut off.

  def write_step(self, step: int, values: Mapping[str, Any]) -> None:
    """Appends metrics by name, with units in the names; or an "event", and its facts.

    They are numbers of Python or numpy, strings, lists and dicts; NaN and
    infinity become null. Raises `OSError` if a line is not completely written;
    the next call writes it first.
    """
    line = {"step": step, **values, **self._stamp}
    text = msgspec.json.encode(line, enc_hook=lambda array: array.tolist())
    self._unwritten += msgspec.json.format(text, indent=0) + b"\n"
    self._write()

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
    with base.naming(self.path):
      written = self._file.write(self._unwritten)
    size, whole = len(self._unwritten), self._unwritten.rfind(b"\n", 0, written) + 1
    # The start of a line that was cut off stays there, and is ignored: another
    # member may write before this one can.
    self._unwritten = b"\n" * (whole < written) + self._unwritten[whole:]
    if written < size:
      raise OSError(f"Wrote only {written} of {size} bytes to {self.path}.")


class Tail:
  """Reads the lines that are appended to a file after `at` bytes, each once, and whole."""

  def __init__(self, path: pathlib.Path, at: int = 0) -> None:
    self._path, self._at = path, at

  def read(self) -> bytes:
    """Returns the lines since the last call, none while there is no file."""
    if not self._path.exists():
      return b""
    with open(self._path, "rb") as file:
      file.seek(self._at)
      whole, end, _ = file.read().rpartition(b"\n")
    self._at += len(whole + end)
    return whole + end


class MetricsReader:
  """Reads lines incrementally, each once; a run may write millions.

  Attributes:
    life: The newest life that was read; 0 before, and in logs of older versions.
  """

  def __init__(self, path: str | os.PathLike[str]) -> None:
    self._path = pathlib.Path(path)
    self._tail = Tail(self._path)
    self.life = 0

  def read(self) -> tuple[Line, ...]:
    """Returns the lines since the last call, none while there is no file.

    Those of repeated steps are among them, see `fold`. Raises like `read_lines`.
    """
    kept = []
    for line in _parse_lines(self._tail.read(), self._path):
      life = line.pop("life", self.life)
      line.pop("member", None)
      if life >= self.life:
        self.life = life
        kept.append(line)
    return tuple(kept)


def read_lines(path: str | os.PathLike[str]) -> tuple[Line, ...]:
  """Returns the complete lines that count, see `fold`, in their order.

  Raises `OSError` without a file, and `ValueError` for a line without "step",
  except one that was cut off.
  """
  os.stat(path)  # A reader waits for its file.
  return fold(MetricsReader(path).read())


def fold(lines: Iterable[Line]) -> tuple[Line, ...]:
  """Returns lines without those of steps that were repeated later.

  A resumed run repeats the steps after its "start", and a "rollback" those after
  its step; the deaths and joins in these stay, and the slow nodes, which are named
  once. If two members told one step, as the first died and the others did it again,
  the later line stands.
  """
  kept: list[Line] = []
  told: set[int] = set()
  for line in lines:
    event, step = line.get("event"), line["step"]
    if event is None and step in told:
      kept = [l for l in kept if l["step"] != step or "event" in l]
    if event in CUTS:
      stays = CUTS if event == START else (*CUTS, "recovery", "join", "slow")
      kept = [l for l in kept if l["step"] <= step or l.get("event") in stays]
      told = {one for one in told if one <= step}
    elif event is None:
      told.add(step)
    kept.append(line)
  return tuple(kept)


def _parse_lines(content: bytes, path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  lines = []
  for number, text in enumerate(content.split(b"\n")[:-1], start=1):
    try:
      lines.append(_parse_line(text))
    except (ValueError, TypeError, KeyError) as e:
      if not isinstance(e, ValueError) or not _BEGIN.startswith(text[:7]):
        raise ValueError(
            f"Line {number} of {path} is not a JSON object with a number 'step': {text[:80]!r}."
        ) from e
      logging.warning("Line %d of %s was cut off by a crash.", number, path)
      if (begin := text.rfind(_BEGIN)) > 0:  # Another member has gone on right behind it.
        with contextlib.suppress(ValueError, TypeError, KeyError):
          lines.append(_parse_line(text[begin:]))
  return lines


def _parse_line(text: bytes) -> dict[str, Any]:
  line: dict[str, Any] = json.loads(text)
  if not isinstance(line["step"], int):
    raise TypeError("step is not an integer")
  return line


def column(
    lines: Sequence[Line], name: str, *, event: str | None = None
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
  """Returns the steps, or those of an `event`, and their values of `name`; without nulls."""
  found = [
      (line["step"], line[name])
      for line in lines
      if line.get("event") == event and line.get(name) is not None
  ]
  return tuple(step for step, _ in found), tuple(value for _, value in found)


# Event of a node that a fault is about to hit, see `note_node`.
FAULT = "fault"
_NODES = "nodes.jsonl"


def note_node(workdir: pathlib.Path, event: str, name: str, **facts: Any) -> None:
  """Appends an event of the node `name` of a cluster to `nodes.jsonl`; raises `OSError`.

  The launcher notes the nodes that it starts and removes, and each victim the fault that is
  about to hit it. Times are on `time.perf_counter`, which all processes of a machine share.
  """
  line = {"at_secs": time.perf_counter(), "event": event, "name": name, **facts}
  with base.naming(workdir / _NODES), open(workdir / _NODES, "a") as file:
    file.write(json.dumps(line) + "\n")


class NodesReader:
  """Reads the lines that are appended to `nodes.jsonl` from now on, each once."""

  def __init__(self, workdir: pathlib.Path) -> None:
    path = workdir / _NODES
    self._tail = Tail(path, path.stat().st_size if path.exists() else 0)

  def read(self) -> list[dict[str, Any]]:
    return [json.loads(line) for line in self._tail.read().splitlines()]
