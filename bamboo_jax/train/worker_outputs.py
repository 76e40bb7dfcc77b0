"""What a cluster leaves in its workdir: one node writes it, whoever that is.

All nodes call the same methods at the same times; those that do not write only
remember the last step, in case the one that writes dies. What has to be known
of earlier steps is read from the log, which outlives them all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import pathlib
from typing import Any

from absl import logging
import ml_collections

from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.plan import planner
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train import build
from bamboo_jax.train import cost
from bamboo_jax.train import failures
from bamboo_jax.train import hooks
from bamboo_jax.train import outputs
from bamboo_jax.train import step as step_lib
from bamboo_jax.train import step_passes
from bamboo_jax.train import worker_recovery

_RECOVERY = "recovery"
_START = "start"


@dataclasses.dataclass(frozen=True)
class Members:
  """The nodes of a cluster, as the meter sees them.

  Attributes:
    nodes: Returns the nodes that live now.
  """

  nodes: Callable[[], cost.Nodes]

  def timelines(self) -> Sequence[timeline_lib.Timeline]:
    """Returns nothing: what has run is measured."""
    return ()


@dataclasses.dataclass(frozen=True)
class Step:
  """A committed step.

  Attributes:
    step: Number of steps done.
    result: What came out, as far as this node knows.
    passes: What all nodes ran.
    bubble: Bubble fraction.
    view: Number of the view at its end.
  """

  step: int
  result: step_lib.StepResult
  passes: step_passes.Passes
  bubble: float
  view: int


class WorkerOutputs:
  """Log, account and summary.

  Args:
    config: Of the run.
    task: Model and data.
    plan: Of the run.
    workdir: Where files go; must exist.
    number: Number of this node.
    nodes: Returns the nodes that live now.
    is_writer: Returns whether this node is the one that writes.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
      *,
      workdir: pathlib.Path,
      number: int,
      nodes: Callable[[], cost.Nodes],
      is_writer: Callable[[], bool],
  ) -> None:
    self._config = config
    self._task = task
    self._plan = plan
    self._paths = build.workdir_paths(str(workdir))
    self._number = number
    self._members = Members(nodes)
    self._is_writer = is_writer
    self._meter = cost.make_meter(config)
    self._writer: jsonl.MetricsWriter | None = None
    self._last: Step | None = None
    self._started_at: int | None = None

  def begin(self, step: int) -> None:
    """Says from where on the run goes; on the nodes to begin with.

    Removes later lines from the log.

    Args:
      step: Number of steps done before.
    """
    self._started_at = step
    if self._is_writer():
      outputs.write_facts(self._config, self._task, self._paths)
      self._meter.watch(self._members)
      self._open(step)
      self._writer.write_event(_START, step=step, values=self._meter.totals)

  # In a step.

  def say(
      self,
      measured: Sequence[recorder_lib.Measured],
      *,
      start_secs: float,
      recoveries: Iterable[worker_recovery.Recovery],
  ) -> dict[str, float]:
    """Returns what this node says when it votes; plain JSON values.

    Args:
      measured: When its instructions of the step ran.
      start_secs: When the step began.
      recoveries: Those in this step.
    """
    passes = step_passes.measure(
        measured,
        nodes=[self._number],
        owners=self._members.nodes().owners,
        recoveries=list(map(_as_failure, recoveries)),
    )
    last = max((m.end_secs for m in measured), default=start_secs)
    return dataclasses.asdict(passes) | {"span_secs": last - start_secs}

  def write_step(
      self,
      step: int,
      result: step_lib.StepResult,
      said: Iterable[Mapping[str, float]],
      *,
      recoveries: Sequence[worker_recovery.Recovery],
      view: int,
  ) -> None:
    """Writes a committed step, and how deaths in it were recovered from.

    Args:
      step: Number of steps done.
      result: What came out; needs no `measured` and no `recoveries`.
      said: What `say` has returned, of each node that has said something.
      recoveries: Those in this step.
      view: Number of the view.
    """
    result = dataclasses.replace(
        result, recoveries=tuple(map(_as_failure, recoveries))
    )
    passes, bubble = _sum_passes(said, self._members.nodes())
    done = Step(step, result, passes, bubble, view)
    before, self._last = self._last, done
    if not self._is_writer():
      self._close()  # Somebody else may replace the file.
      return
    if self._writer is None:
      self._take_over(step - 1, before)
    self._write(done)
    for recovery in recoveries:
      self._writer.write_event(_RECOVERY, step=step, values=recovery.as_dict())

  def write_event(
      self, event: str, *, step: int, values: Mapping[str, Any]
  ) -> None:
    """Writes something else, such as an evaluation, after so many steps."""
    if self._is_writer():
      self._ensure(step)
      self._writer.write_event(event, step=step, values=values)

  @contextlib.contextmanager
  def during(self, kind: str) -> Iterator[None]:
    """Charges the time of a `with` block; see `cost.Meter.during`."""
    if self._is_writer() and self._writer is not None:
      with self._meter.during(kind):
        yield
    else:
      yield

  def roll_back(self, step: int) -> None:
    """Forgets steps after `step`, which will be done again.

    How deaths were recovered from stays in the log.
    """
    self._last = None
    if not self._is_writer():
      return
    self._ensure(step)
    kept = [l for l in self._recoveries() if l["step"] > step]
    self._meter.charge("lost")
    self._meter.roll_back(self._paths["metrics"], step=step)
    self._writer.forget_after(step)
    for line in kept:
      self._writer.write_event(_RECOVERY, step=step, values=line)
    self._writer.write_event("cost", step=step, values=self._meter.totals)

  # At the end.

  def write_summary(
      self, step: int, layers: Mapping[str, spec_lib.LayerState]
  ) -> None:
    """Writes the summary, unless no step has been done; draws the losses.

    Args:
      step: Number of steps done.
      layers: State of each layer.
    """
    self._ensure(step)
    lines = jsonl.read_lines(self._paths["metrics"])
    start, since = self._find_start(lines)
    steps = [line for line in since if "event" not in line]
    self._meter.charge()
    summary = outputs.make_summary(
        self._task,
        self._plan,
        step,
        layers,
        final_loss=outputs.final_loss(lines),
        resumed_from=start,
        step_secs=[line["step_ms"] / 1e3 for line in steps],
        bubbles=[line["bubble_pct"] / 100 for line in steps],
        recoveries=self._recoveries(),
        meter=self._meter,
    )
    path = self._paths["summary"]
    if not steps and outputs.is_written(path, summary):
      return
    self._writer.write_event("cost", step=step, values=self._meter.totals)
    summary_lib.write_summary(path, summary)
    if self._config.metrics.plots and steps:
      outputs.draw_loss(self._paths)

  def _write(self, done: Step) -> None:
    self._meter.add_step(done.result, done.passes)
    values = hooks.shown_values(
        done.result, bubble=done.bubble, meter=self._meter
    ) | hooks.more_values(
        done.step,
        done.result,
        batch_size=self._plan.batch.batch_size,
        meter=self._meter,
    )
    self._writer.write_step(done.step, values | {"view": done.view})

  def _take_over(self, step: int, last: Step | None) -> None:
    """Goes on with the log of a node that has died.

    Args:
      step: Number of steps of which it has told, or should have.
      last: The last of them, if this node was there.
    """
    self._meter = cost.make_meter(self._config)
    self._meter.watch(self._members)
    self._open(step)
    lines = jsonl.read_lines(self._paths["metrics"])
    told = [line["step"] for line in lines if "event" not in line]
    if last is not None and last.step == step and step not in told[-1:]:
      self._write(last)  # It has died right after the commit.

  def _ensure(self, step: int) -> None:
    if self._writer is None:
      self._take_over(step, self._last)

  def _open(self, step: int) -> None:
    path = self._paths["metrics"]
    self._meter.resume(path, step=step)
    self._meter.charge()
    self._writer = jsonl.MetricsWriter(
        path,
        resumed_from_step=step,
        on_error=lambda e: logging.warning("Lines of the log wait: %s", e),
    )

  def _close(self) -> None:
    if self._writer is not None:
      self._writer.close()
      self._writer = None

  def _find_start(
      self, lines: Sequence[jsonl.Line]
  ) -> tuple[int, Sequence[jsonl.Line]]:
    """Returns where the run has begun or been resumed, and the lines since."""
    starts = [i for i, line in enumerate(lines) if line.get("event") == _START]
    index = starts[-1] if starts else 0
    step = lines[index]["step"] if starts else 0
    return self._started_at or step, lines[index:]

  def _recoveries(self) -> list[dict[str, Any]]:
    """Returns the recoveries since the start, each once."""
    _, lines = self._find_start(jsonl.read_lines(self._paths["metrics"]))
    found = [line for line in lines if line.get("event") == _RECOVERY]
    by_view = {line["view"]: line for line in found}
    return [
        {k: v for k, v in line.items() if k != "event"}
        for line in by_view.values()
    ]


def _sum_passes(
    said: Iterable[Mapping[str, float]], nodes: cost.Nodes
) -> tuple[step_passes.Passes, float]:
  """Returns what all nodes ran in a step, and its bubble fraction."""
  total, span_secs = step_passes.Passes(), 0.0
  for words in map(dict, said):
    span_secs = max(span_secs, words.pop("span_secs"))
    total += step_passes.Passes(**words)
  available = span_secs * len(nodes.training)
  return total, 1.0 - total.total_secs / available if available else 0.0


def _as_failure(recovery: worker_recovery.Recovery) -> failures.Recovery:
  """Returns a recovery as the account of a run wants it."""
  r = recovery
  return failures.Recovery(
      step=r.step,
      victims=r.victims,
      rung=r.rung,
      detect_secs=max(0.0, r.agreed_at_secs - r.view_at_secs),
      plan_secs=max(0.0, r.ready_at_secs - r.agreed_at_secs),
      killed_at_secs=r.view_at_secs,
  )
