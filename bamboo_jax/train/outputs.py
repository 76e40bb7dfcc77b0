"""What a run leaves in its workdir, beside checkpoints and the log."""

from collections.abc import Sequence
import contextlib
import pathlib

import ml_collections

from bamboo_jax import base
from bamboo_jax.metrics import chrome_trace
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import plots
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.metrics import tensorboard
from bamboo_jax.plan import planner
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train import build
from bamboo_jax.train import cost
from bamboo_jax.train import digest
from bamboo_jax.train import failures
from bamboo_jax.train import hooks as hooks_lib


class Outputs:
  """The files of a run, and the hooks that gather what is in them.

  Attributes:
    metrics: Hook that writes the metrics of each step.
    trace: Hook that keeps when instructions ran.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
      *,
      timelines: Sequence[timeline_lib.Timeline],
      paths: dict[str, pathlib.Path],
      writer: jsonl.MetricsWriter,
      progress: progress_lib.Progress,
      meter: cost.Meter,
      stack: contextlib.ExitStack,
  ) -> None:
    """Opens files; `stack` closes them."""
    self._config = config
    self._task = task
    self._plan = plan
    self._paths = paths
    self._meter = meter
    events = None
    if config.metrics.tensorboard:
      events = stack.enter_context(
          tensorboard.TensorBoardWriter(paths["events"])
      )
    self.metrics = hooks_lib.StepMetrics(
        writer=writer,
        progress=progress,
        events=events,
        batch_size=plan.batch.batch_size,
        meter=meter,
    )
    self.trace = hooks_lib.Trace(
        chrome_trace.TraceWriter(
            paths["trace"], max_steps=max(1, config.metrics.trace_steps)
        ),
        timelines,
    )

  def write_facts(self) -> None:
    """Writes the config and which text is trained on."""
    config = self._config.to_json_best_effort(indent=2)
    base.write_atomically(self._paths["config"], config + "\n")
    manifest = self._task.batches.source.manifest
    if manifest is not None:
      base.write_atomically(self._paths["manifest"], manifest.to_json())

  def write_summary(
      self,
      step: int,
      layers: dict[str, spec_lib.LayerState],
      *,
      resumed_from: int,
      recoveries: Sequence[failures.Recovery],
  ) -> None:
    """Writes the summary, unless it is there and no step has been done.

    Args:
      step: Number of steps done.
      layers: State of each layer.
      resumed_from: Number of steps done before this process.
      recoveries: All recoveries of this process.
    """
    metrics, order = self.metrics, self._task.layer_names
    samples_seen = step * self._plan.batch.batch_size
    summary = summary_lib.Summary(
        steps=step,
        final_loss=self._final_loss(),
        params_sha256=digest.params_sha256(layers, order),
        state_sha256=digest.state_sha256(
            layers, order, samples_seen=samples_seen
        ),
        samples_seen=samples_seen,
        resumed_from_step=resumed_from,
        median_step_secs=summary_lib.median_step_secs(metrics.step_secs),
        bubble_fraction=hooks_lib.median_bubble(metrics.bubbles),
        more={
            "predicted_step_secs": self._plan.step_time.total_ms / 1e3,
            "predicted_bubble_fraction": self._plan.bubble_fraction,
            "costs_measured": self._plan.profile.measured,
            "partition": list(self._plan.partition.bounds),
            "recoveries": [r.as_dict() for r in recoveries],
            "cost": self._meter.account.as_dict(),
        },
    )
    if not metrics.step_secs and self._is_written(summary):
      return
    summary_lib.write_summary(self._paths["summary"], summary)

  def _final_loss(self) -> float | None:
    """Returns the loss of the last step, maybe one of another process."""
    if self.metrics.loss is not None:
      return self.metrics.loss
    lines = jsonl.read_lines(self._paths["metrics"])
    losses = jsonl.column(lines, "loss")[1]
    return losses[-1] if losses else None

  def _is_written(self, summary: summary_lib.Summary) -> bool:
    """Returns whether a summary of the same state is there."""
    try:
      former = summary_lib.read_summary(self._paths["summary"])
    except (OSError, ValueError):
      return False
    return former.state_sha256 == summary.state_sha256

  def draw(self) -> None:
    """Writes the trace, and the pictures if wanted."""
    self.trace.write()
    if not self._config.metrics.plots:
      return
    lines = jsonl.read_lines(self._paths["metrics"])
    plots.plot_loss(
        self._paths["loss"],
        train=jsonl.column(lines, "loss"),
        evaluation=jsonl.column(lines, "loss", event="eval"),
    )
    plots.plot_schedule(
        self._paths["schedule"],
        planned=self.trace.planned,
        measured=self.trace.measured,
    )
