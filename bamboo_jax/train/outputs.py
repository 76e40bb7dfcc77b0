"""What a run leaves in its workdir, beside checkpoints and the log."""

from collections.abc import Mapping, Sequence
import contextlib
import pathlib
from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.checkpoint import digest
from bamboo_jax.metrics import chrome_trace
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import plots
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.metrics import tensorboard
from bamboo_jax.plan import planner
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train import build
from bamboo_jax.train import cost
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
    write_facts(self._config, self._task, self._paths)

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
    metrics, loss = self.metrics, self.metrics.loss
    if loss is None:  # It was another process that has done the last step.
      loss = final_loss(jsonl.read_lines(self._paths["metrics"]))
    summary = make_summary(
        self._task,
        self._plan,
        step,
        layers,
        final_loss=loss,
        resumed_from=resumed_from,
        step_secs=metrics.step_secs,
        bubbles=metrics.bubbles,
        recoveries=[r.as_dict() for r in recoveries],
        meter=self._meter,
    )
    if metrics.step_secs or not is_written(self._paths["summary"], summary):
      summary_lib.write_summary(self._paths["summary"], summary)

  def draw(self) -> None:
    """Writes the trace, and the pictures if wanted."""
    self.trace.write()
    if not self._config.metrics.plots:
      return
    draw_loss(self._paths)
    plots.plot_schedule(
        self._paths["schedule"],
        planned=self.trace.planned,
        measured=self.trace.measured,
    )


def write_facts(
    config: ml_collections.ConfigDict,
    task: build.Task,
    paths: Mapping[str, pathlib.Path],
) -> None:
  """Writes the config and which text is trained on."""
  text = config.to_json_best_effort(indent=2)
  base.write_atomically(paths["config"], text + "\n")
  manifest = task.batches.source.manifest
  if manifest is not None:
    base.write_atomically(paths["manifest"], manifest.to_json())


def make_summary(
    task: build.Task,
    plan: planner.Plan,
    step: int,
    layers: Mapping[str, spec_lib.LayerState],
    *,
    final_loss: float | None,
    resumed_from: int,
    step_secs: Sequence[float],
    bubbles: Sequence[float],
    recoveries: Sequence[Mapping[str, Any]],
    meter: cost.Meter,
) -> summary_lib.Summary:
  """Returns the summary of a run.

  Args:
    task: Model and data.
    plan: What was run.
    step: Number of steps done.
    layers: State of each layer.
    final_loss: Loss of the last step.
    resumed_from: Number of steps done before the run went on.
    step_secs: Time of each step since.
    bubbles: Bubble fraction of each step since.
    recoveries: All since.
    meter: What it has cost.
  """
  order, samples_seen = task.layer_names, step * plan.batch.batch_size
  return summary_lib.Summary(
      steps=step,
      final_loss=final_loss,
      params_sha256=digest.params_sha256(layers, order),
      state_sha256=digest.state_sha256(
          layers, order, samples_seen=samples_seen
      ),
      samples_seen=samples_seen,
      resumed_from_step=resumed_from,
      median_step_secs=summary_lib.median_step_secs(step_secs),
      bubble_fraction=hooks_lib.median_bubble(bubbles),
      more={
          "predicted_step_secs": plan.step_time.total_ms / 1e3,
          "predicted_bubble_fraction": plan.bubble_fraction,
          "costs_measured": plan.profile.measured,
          "partition": list(plan.partition.bounds),
          "recoveries": list(recoveries),
          "cost": meter.account.as_dict(),
      },
  )


def final_loss(lines: Sequence[jsonl.Line]) -> float | None:
  """Returns the loss of the last step in a log; None before the first."""
  losses = [line.get("loss") for line in lines if "event" not in line]
  return losses[-1] if losses else None


def is_written(path: pathlib.Path, summary: summary_lib.Summary) -> bool:
  """Returns whether a summary of the same state is there."""
  try:
    former = summary_lib.read_summary(path)
  except (OSError, ValueError):
    return False
  return former.state_sha256 == summary.state_sha256


def draw_loss(paths: Mapping[str, pathlib.Path]) -> None:
  """Draws the losses in the log."""
  lines = jsonl.read_lines(paths["metrics"])
  plots.plot_loss(
      paths["loss"],
      train=jsonl.column(lines, "loss"),
      evaluation=jsonl.column(lines, "loss", event="eval"),
  )
