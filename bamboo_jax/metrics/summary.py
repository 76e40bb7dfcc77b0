"""The outcome of a run: `summary.json`; with the log, for Python code."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import os
import pathlib
import shlex
import statistics
from typing import Any

from bamboo_jax.metrics import jsonl


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
  """The outcome of a run.

  Attributes:
    final_loss: Mean loss per token of the last step, in nats; None before the
      first step and if it is not finite.
    params_sha256: Hash of the parameters, see `checkpoint.arrays`.
    state_sha256: Hash of everything that the next step depends on.
    resumed_from_step: Steps done before this process.
    bubble_fraction: Share of the nodes' time spent waiting, if measured.
    more: Further entries of the file by name; they stand beside the ones above.
  """

  steps: int
  final_loss: float | None
  params_sha256: str
  state_sha256: str
  samples_seen: int
  resumed_from_step: int
  median_step_secs: float | None
  bubble_fraction: float | None
  more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def recoveries(self) -> Sequence[Mapping[str, Any]]:
    """Deaths that training survived, see `recovery.durations.report`."""
    found: Sequence[Mapping[str, Any]] = self.more.get("recoveries", ())
    return found

  def __str__(self) -> str:
    loss, count = self.final_loss, len(self.recoveries)
    return (
        f"{self.steps} steps, {self.samples_seen} samples, "
        f"loss {'none' if loss is None else format(loss, '.4f')}, "
        f"{count} {'recovery' if count == 1 else 'recoveries'}, state_sha256={self.state_sha256}"
    )

  def render(self, workdir: str) -> str:
    """Returns the last line about a run that is done."""
    secs = self.more["cost"]["secs"]
    return f"done in {secs:.1f} s: {self}; next: bamboo report {shlex.quote(workdir)}"


def read_summary(path: str | os.PathLike[str]) -> Summary:
  """Reads the file that `training.record.journal` writes; raises `OSError` or `ValueError`."""
  try:
    entries = json.loads(pathlib.Path(path).read_text())
    names = [f.name for f in dataclasses.fields(Summary) if f.name != "more"]
    own = {name: entries.pop(name) for name in names}
  except (ValueError, AttributeError, KeyError, TypeError) as e:
    raise ValueError(f"{path} is not a summary of a run: {e!r}.") from e
  return Summary(**own, more=entries)


def median_but_first(values: Sequence[float]) -> float | None:
  """Returns the median over steps without the first, which compiles.

  If there is only one step, its value; None without steps.
  """
  return statistics.median(values[1:] or values) if values else None


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a run, read from its workdir.

  Attributes:
    summary: Contents of `summary.json`.
    lines: Lines of `metrics.jsonl`, one for each step and event.
  """

  workdir: pathlib.Path
  summary: Summary
  lines: Sequence[jsonl.Line] = dataclasses.field(repr=False)

  @property
  def steps(self) -> int:
    """Number of steps done."""
    return self.summary.steps

  @functools.cached_property
  def losses(self) -> dict[int, float]:
    """Mean loss of each step, by number of the step, from 1."""
    return dict(zip(*jsonl.column(self.lines, "loss"), strict=True))

  @property
  def recoveries(self) -> Sequence[Mapping[str, Any]]:
    """Deaths that training survived, as in `summary.json`."""
    return self.summary.recoveries

  @property
  def params_sha256(self) -> str:
    """Hash of the parameters."""
    return self.summary.params_sha256

  @property
  def state_sha256(self) -> str:
    """Hash of everything that the next step depends on."""
    return self.summary.state_sha256

  def __str__(self) -> str:
    return str(self.summary)


def read_result(workdir: str | os.PathLike[str]) -> Result:
  """Returns the result of the run in a workdir.

  Raises `OSError` or `ValueError` if there is none.
  """
  root = pathlib.Path(workdir)
  return Result(root, read_summary(root / "summary.json"), jsonl.read_lines(root / "metrics.jsonl"))
