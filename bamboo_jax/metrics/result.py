"""The result of a run, for Python code."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
import pathlib
from typing import Any

from bamboo_jax.metrics import jsonl, summary as summary_lib


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a run, read from its workdir.

  Attributes:
    summary: Contents of `summary.json`.
    lines: Lines of `metrics.jsonl`, one for each step and event.
  """

  workdir: pathlib.Path
  summary: summary_lib.Summary
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
    found: Sequence[Mapping[str, Any]] = self.summary.more.get("recoveries", ())
    return found

  @property
  def params_sha256(self) -> str:
    """Hash of the parameters."""
    return self.summary.params_sha256

  @property
  def state_sha256(self) -> str:
    """Hash of everything that the next step depends on."""
    return self.summary.state_sha256

  def __str__(self) -> str:
    """Returns the result in a sentence."""
    loss, count = self.summary.final_loss, len(self.recoveries)
    return (
        f"{self.steps} steps"
        + ("" if loss is None else f", loss {loss:.4f}")
        + f", {count} {'recovery' if count == 1 else 'recoveries'}, "
        f"state_sha256={self.state_sha256}"
    )


def read_result(workdir: str | os.PathLike[str]) -> Result:
  """Returns the result of the run in a workdir.

  Raises `OSError` or `ValueError` if there is none.
  """
  root = pathlib.Path(workdir)
  return Result(
      root,
      summary_lib.read_summary(root / "summary.json"),
      jsonl.read_lines(root / "metrics.jsonl"),
  )
