"""The files of a run, and its progress.

The member that hosts the lowest training node writes. All members make the same
calls and measure the same; the others only keep the last step, in case the
writer dies before it is told. Totals up to then are read from the log.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import contextlib
import dataclasses
import time
from typing import Any, NamedTuple

from absl import logging

from bamboo_jax import base
from bamboo_jax.accounting import ledger as ledger_lib, runs
from bamboo_jax.base import logs
from bamboo_jax.checkpoint import digest
from bamboo_jax.metrics import (
    jsonl,
    loss_plot,
    plots,
    progress as progress_lib,
    summary as summary_lib,
)
from bamboo_jax.train import (
    environment,
    failures as failures_lib,
    run_state as run_state_lib,
    step as step_lib,
)
from bamboo_jax.train.record import (
    log_writers,
    meter as meter_lib,
    mfu,
    opening,
    run_summary,
    step_traces,
)
from bamboo_jax.train.setup import job as job_lib, sizes

_COUNT_SECS = 4.0  # Between counts of compiled programs.
# Events at the start that are also shown, as their "text".
WARNING, CHANGED = "warning", "changed"


class _LastStep(NamedTuple):
  """The last step, its nodes, the samples that it left out, and its charges."""

  done: step_lib.Committed
  nodes: meter_lib.Nodes
  num_dropped: int
  charges: Sequence[meter_lib.Charge]


class Outputs:
  """Log, progress, trace, account and summary; the workdir must exist.

  Attributes:
    shown: Metrics of the last step that this member wrote.
    failures: Those of loggers and callbacks, among others.
  """

  def __init__(
      self, job: job_lib.Job, given: environment.Environment, state: run_state_lib.RunState
  ) -> None:
    self._job, self._state = job, state
    self._config = config = job.config
    self._workdir, self._name = given.workdir, given.name
    self._progress = given.progress
    self._meter = meter_lib.Meter(since_secs=given.started_secs)
    self._price = sizes.find_price(config)
    self._ledger = ledger_lib.Ledger(self._price, market=config.cost.market)
    self._batch_size = job.plan.batch.batch_size
    self._unit = job.task.batches.source.unit
    self._mfu = mfu.Mfu.of(job)
    self._callbacks = given.callbacks
    self._writer: log_writers.LogWriters | None = None
    num_traced = max(1, config.metrics.trace_steps)
    self._traced = collections.deque[step_lib.Committed](maxlen=num_traced)
    self._first_secs: float | None = None
    self._rows = step_traces.RowFile(self._workdir.rows, given.name, num_steps=num_traced)
    folder = self._workdir.profiles / given.name
    self._profiler = step_traces.Profiler(config.metrics.profiled, folder)
    self.shown: dict[str, float] = {}
    self.failures = failures_lib.Failures()
    self._last: _LastStep | None = None
    self._started_at: int | None = None
    self._has_warned = False
    self._counted_secs = 0.0  # When compiled programs were counted.
    self._owners: list[list[int]] = []  # Last written to the log.

  @property
  def _log(self) -> log_writers.LogWriters:
    assert self._writer is not None, "Another member writes the log."
    return self._writer

  def begin(self, step: int) -> None:
    """Starts the log at `step`, at the start of a run; later steps are repeated."""
    self._started_at = step
    self._profiler.note_done(step)
    logs.note_step(step)
    warnings = opening.find_warnings(self._job)
    self._show_start(step, warnings)
    self._meter.begin(self._nodes())
    if self._state.is_writer:
      step_traces.clear(self._workdir.rows)  # Of an earlier run.
      opening.write_facts(self._job, self._workdir)
      if step < self._config.num_steps:
        self.close()  # It may have started at another step.
        self._open(step)
        if self.failures.error is not None:
          raise self.failures.error
        self._roll_back(jsonl.START, step)
        for text in warnings:
          self._log.write_event(WARNING, step=step, values={"text": text})
        for change in self._state.writer.changes:
          values = dataclasses.asdict(change) | {"text": change.render()}
          self._log.write_event(CHANGED, step=step, values=values)

  def show(self, text: str) -> None:
    """Shows a line."""
    if self._progress is not None:
      self._progress.show_text(text)

  def write_step(self, done: step_lib.Committed) -> None:
    """Writes a committed step, and the recoveries in it."""
    before, num_dealt = self._last, sum(map(len, self._state.layout.shares))
    kept = num_dealt / self._job.plan.batch.num_shares
    num_dropped, nodes = round(self._batch_size * (1 - kept)), self._nodes()
    charges = self._meter.add_step(done, nodes=nodes, num_samples=self._batch_size - num_dropped)
    self._last = _LastStep(done, nodes, num_dropped, charges)
    self._profiler.note_done(done.steps)
    logs.note_step(done.steps)
    self._rows.add(done, with_plan=self._state.is_writer)
    if not self._state.is_writer:
      self.close()  # Another member writes from now on.
      return
    self._ensure(done.steps - 1, before, num_later=int(not done.skipped))
    self._write(self._last, num_updates=self._state.num_updates)
    for recovery in done.recoveries:
      values = dataclasses.asdict(recovery)
      self.write_event("recovery", step=done.steps, values=values)

  def welcome(
      self,
      boot_secs: Mapping[base.NodeId, float],
      *,
      names: Mapping[base.NodeId, str],
      in_step: bool,
  ) -> None:
    """Charges and logs joining nodes; see `meter.Meter.welcome`."""
    come = self._meter.welcome(boot_secs, None if in_step else self._nodes())
    if come:
      step = self._state.steps + 1  # The step that they join.
      values = {
          "boot_secs": {str(n): come[n] for n in come},
          "names": [names.get(n, f"node {n}") for n in come],
      }
      self.write_event("join", step=step, values=values)

  def write_event(self, event: str, *, step: int, values: Mapping[str, Any]) -> None:
    """Writes and shows an event after `step` steps, such as an evaluation."""
    if self._state.is_writer:
      self._ensure(step, self._last)
      self._log.write_event(event, step=step, values=values)
      line = {"step": step, **values, "event": event}
      if (text := progress_lib.render_event(line)) is not None:
        self.show(text)

  def explain(self, reason: str, *, step: int | None = None, at_once: bool = False) -> None:
    """Shows and logs why training pauses, by default before the next step.

    It is shown if the pause is long, or `at_once`.
    """
    if self._progress is not None:
      self._progress.explain(reason, at_once=at_once)
    if self._state.is_first:  # The writer may have died.
      steps, flags = self._state.steps, {"at_once": True} if at_once else {}
      self._ensure(steps, self._last)
      self._log.write_event("pause", step=step or steps + 1, values={"reason": reason, **flags})

  def count_compiled(self, num_done: int, num_programs: int) -> None:
    """Explains a pause every few seconds by the number of compiled programs."""
    now = time.monotonic()
    if num_done == 1:
      self._counted_secs = now
    elif now > self._counted_secs + _COUNT_SECS and num_done < num_programs:
      self._counted_secs = now
      self.explain(f"{num_done} of {num_programs} programs are compiled")

  def during(self, kind: str) -> contextlib.AbstractContextManager[None]:
    """Charges the time of a `with` block; see `meter.Meter.during`."""
    return self._meter.during(kind)

  def roll_back(self, step: int) -> None:
    """Tells that the steps after `step` will be repeated."""
    self._meter.charge("lost")
    if self._state.is_writer:
      self._ensure(step, self._last)
      self._log.rewind(step)
      self._roll_back(jsonl.ROLLBACK, step)
    self._last = None
    self._meter.take()

  def flush(self) -> None:
    """Waits until rows are written, and ends the profile of this member."""
    self._profiler.stop()
    self._rows.flush()

  def write_summary(self, step: int, digests: digest.Digests) -> None:
    """Writes summary and plots after `step` steps, unless already written."""
    self._ensure(step, self._last)
    lines = jsonl.read_lines(self._workdir.metrics)
    start, since = self._find_start(lines)
    recoveries = run_summary.find_recoveries(since)
    if self._started_at == step:
      since = ()  # This run did no step.
    self._meter.charge()
    self._add(self._meter.take())
    summary = run_summary.make_summary(
        self._job,
        digests,
        steps_done=step,
        started_at=start,
        lines=lines,
        since=since,
        recoveries=recoveries,
        account=self._ledger.account(),
    )
    has_trained = any("event" not in line for line in since)
    if not has_trained and run_summary.is_written(self._workdir, summary):
      return
    self._log.write_event("cost", step=step, values=self._totals)
    if has_trained and self._config.metrics.plots:
      self.explain("figures are drawn", step=step)
    self._log.finish()
    try:  # Last: a launcher ends all processes once it sees the summary.
      self._draw(has_trained=has_trained)
    except base.MissingExtraError as error:
      logging.log_first_n(logging.WARNING, "No plots. %s", 1, error)
    finally:
      summary_lib.write_summary(self._workdir.summary, summary)

  def close(self) -> None:
    """Closes the log."""
    if self._writer is not None:
      self._writer.close()
      self._writer = None

  def _write(self, last: _LastStep, *, num_updates: int) -> None:
    done, nodes = last.done, last.nodes
    self._add(last.charges)
    unit = self._unit or done.sums.unit(self._batch_size)
    shown = {
        "loss": done.sums.mean_loss,
        **dict(zip(self._job.task.whole.metrics, done.sums.metrics, strict=True)),
        "learning_rate": self._job.task.schedule.rate_at(num_updates - (not done.skipped)),
        f"{unit}_per_sec": done.sums.weight / done.secs,
    }
    if done.span_secs:
      available = done.span_secs * len(nodes.training)
      shown["bubble_pct"] = 100 * (1.0 - done.passes.total / available)
    shown["step_ms"] = 1e3 * done.secs
    if self._mfu is not None:
      num_nodes = len(nodes.training)
      shown["mfu_pct"] = self._mfu.find_pct(done.secs, num_nodes=num_nodes)
    account = self._ledger.account()
    shown["goodput_pct"] = 100 * account.node_time.goodput
    if account.price is not None:
      shown["usd"] = account.usd
    self.shown = shown
    more = self._totals | {
        "grad_norm": done.sums.grad_norm,
        "samples_seen": done.steps * self._batch_size,
        "samples_dropped": last.num_dropped,
        "phase_ms": {k: 1e3 * v for k, v in done.phase_secs.items()},
        "view": done.view,
    }
    if done.filled is not None and done.predicted is not None:
      planned = dataclasses.asdict(done.predicted)
      more["redundant"] = dataclasses.asdict(done.filled) | {
          f"planned_{name}": value for name, value in planned.items()
      }
    if done.skipped:  # First: the line of a step is the last one about it.
      values = {"reason": done.skipped}
      self.write_event(run_summary.SKIPPED, step=done.steps, values=values)
    if (owners := [list(row) for row in nodes.owners]) != self._owners:
      self._owners, found = owners, [r.rung for r in done.recoveries]
      rung = found[-1] if found else self._state.rung
      values = {"owners": owners, "rung": rung, "at_secs": time.perf_counter()}
      values["names"] = {str(n): name for n, name in done.names.items()}
      self._log.write_event("layout", step=done.steps, values=values)
    if self._progress is not None:
      self._progress.show_step(done.steps, shown)
    self._log.write_step(done.steps, shown | more)
    if self._first_secs is None:
      self._first_secs = done.start_secs
    self._traced.append(done)

  def _draw(self, *, has_trained: bool) -> None:
    """Writes the trace, and figures if the config asks and steps were run."""
    traced = []
    if self._first_secs is not None:
      since_secs, steps = self._first_secs, [*self._traced]
      traced = step_traces.write_trace(self._workdir, self._name, steps, since_secs=since_secs)
    if not self._config.metrics.plots or not has_trained:
      return
    lines = jsonl.read_lines(self._workdir.metrics)
    formats = plots.parse_formats(self._config.metrics.figure_format)
    figure = loss_plot.draw_losses([loss_plot.read_losses(lines, name="")])
    plots.save_figure(figure, self._workdir.loss_plot, formats)
    path = self._workdir.schedule_plot
    step_traces.plot_step(path, traced, formats=formats)

  def _show_start(self, step: int, warnings: Sequence[str]) -> None:
    self.show(sizes.describe_batch(self._config))
    self.show(opening.describe_plan(self._job))
    for text in warnings:
      self.show(f"warning: {text}")
    if step:
      self.show(f"resumed_from_step={step}")
    for change in self._state.writer.changes:
      self.show(change.render())
    if step >= (num_steps := self._config.num_steps):
      self.show(f"nothing to do: {step} of {num_steps=} steps are done")

  def _ensure(self, step: int, last: _LastStep | None, num_later: int = 0) -> None:
    """Opens the log; if a dead member wrote it, goes on after `step`.

    Writes the step `last` if the dead member did not; the parameters have had
    `num_later` updates since.
    """
    if self._writer is None:
      step = last.done.steps if last else step
      lines = self._open(step, up_to_step=step)
      is_told = any(l["step"] == step for l in lines if "event" not in l)
      if last is not None and not is_told:  # It died right after the commit.
        self._write(last, num_updates=self._state.num_updates - num_later)

  def _open(self, step: int, *, up_to_step: int | None = None) -> Sequence[jsonl.Line]:
    """Opens the log, from `step` on; returns its lines, and reads the totals."""
    lines = self._read()
    totals = runs.last_totals(lines, up_to_step=up_to_step)
    self._ledger = ledger_lib.Ledger(self._price, market=self._config.cost.market, start=totals)
    self._writer = log_writers.LogWriters(
        self._workdir,
        self._config,
        resumed_from_step=step,
        callbacks=self._callbacks,
        on_error=self._warn_of_log,
        warn=self._warn,
        failures=self.failures,
    )
    return lines

  def _read(self) -> Sequence[jsonl.Line]:
    path = self._workdir.metrics
    return jsonl.read_lines(path) if path.exists() else ()

  def _roll_back(self, event: str, step: int) -> None:
    """Writes an event after which the steps after `step` are repeated."""
    self._add(self._meter.take())
    self._ledger.roll_back(runs.last_totals(self._read(), up_to_step=step))
    self._log.write_event(event, step=step, values=self._totals)

  def _add(self, charges: Iterable[meter_lib.Charge]) -> None:
    for secs, node_time, num_samples in charges:
      self._ledger.add_time(secs, node_time, num_samples=num_samples)

  @property
  def _totals(self) -> dict[str, object]:
    """The totals so far, as an entry of the log."""
    return {runs.KEY: self._ledger.totals().as_dict()}

  def _warn(self, text: str) -> None:
    steps = self._state.steps
    self.write_event(WARNING, step=steps, values={"text": text})

  def _warn_of_log(self, error: OSError) -> None:
    """Warns once that the log is delayed."""
    if not self._has_warned:
      self.show(
          f"warning: Cannot write {self._workdir.metrics}: "
          f"{error.strerror or error}. Training continues; lines are kept."
      )
    self._has_warned = True

  def _nodes(self) -> meter_lib.Nodes:
    roles = self._state.layout.roles
    return meter_lib.Nodes([r.owners for r in roles], self._state.spares)

  def _find_start(self, lines: Sequence[jsonl.Line]) -> tuple[int, Sequence[jsonl.Line]]:
    """Returns the step of the last start or resume, and the lines since."""
    starts = [i for i, line in enumerate(lines) if line.get("event") == jsonl.START]
    index = starts[-1] if starts else 0
    step = self._started_at or (lines[index]["step"] if starts else 0)
    return step, lines[index:]
