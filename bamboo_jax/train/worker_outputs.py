"""What a cluster leaves in its workdir: one node writes it, whoever that is."""

from collections.abc import Mapping
import pathlib
from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.plan import planner
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.train import build
from bamboo_jax.train import digest

_RECOVERY = "recovery"


class WorkerOutputs:
  """Log and summary; files are opened by the first call that writes.

  Args:
    config: Of the run.
    task: Model and data.
    plan: Of the run.
    workdir: Where files go.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
      *,
      workdir: pathlib.Path,
  ) -> None:
    self._config = config
    self._task = task
    self._plan = plan
    self._paths = build.workdir_paths(str(workdir))
    self._writer: jsonl.MetricsWriter | None = None
    self._step_secs: list[float] = []
    self._loss: float | None = None

  def note_step(self, *, loss: float, secs: float) -> None:
    """Notes a step; called on all nodes."""
    self._loss = loss
    self._step_secs.append(secs)

  def write_step(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes the metrics of a step; `step` is the number of steps done."""
    self._open(step - 1).write_step(step, values)

  def write_recovery(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes how a death was recovered from, in the last of `step` steps."""
    self._open(step - 1).write_event(_RECOVERY, step=step, values=values)

  def write_summary(
      self, step: int, layers: Mapping[str, spec_lib.LayerState]
  ) -> None:
    """Writes the config and the summary.

    The recoveries are those in the log, as many nodes may have written it.

    Args:
      step: Number of steps done.
      layers: State of each layer.
    """
    text = self._config.to_json_best_effort(indent=2)
    base.write_atomically(self._paths["config"], text + "\n")
    order = self._task.layer_names
    samples_seen = step * self._plan.batch.batch_size
    summary = summary_lib.Summary(
        steps=step,
        final_loss=self._loss,
        params_sha256=digest.params_sha256(layers, order),
        state_sha256=digest.state_sha256(
            layers, order, samples_seen=samples_seen
        ),
        samples_seen=samples_seen,
        resumed_from_step=0,
        median_step_secs=summary_lib.median_step_secs(self._step_secs),
        bubble_fraction=None,
        more={
            "predicted_step_secs": self._plan.step_time.total_ms / 1e3,
            "partition": list(self._plan.partition.bounds),
            "recoveries": self._read_recoveries(),
        },
    )
    summary_lib.write_summary(self._paths["summary"], summary)

  def _read_recoveries(self) -> list[dict[str, Any]]:
    if not self._paths["metrics"].exists():
      return []
    lines = jsonl.read_lines(self._paths["metrics"])
    return [
        {k: v for k, v in line.items() if k != "event"}
        for line in lines
        if line.get("event") == _RECOVERY
    ]

  def _open(self, step: int) -> jsonl.MetricsWriter:
    if self._writer is None:
      self._writer = jsonl.MetricsWriter(
          self._paths["metrics"], resumed_from_step=step
      )
    return self._writer
