"""The journal of a run: what happened, step by step, in lines that are only appended.

The member that hosts the lowest training node writes. All members make the same
calls and measure the same; the others keep the last step, and write it if the
writer died before it was written. All else that is known of a run is a fold of
these lines: `fold_summary` here, `accounting.account`, `report`.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import statistics
import time
import types
from typing import Any, NamedTuple

from absl import logging
import jax

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib, machines
from bamboo_jax.base import logs
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.cluster import mirror
from bamboo_jax.data import corpus
from bamboo_jax.metrics import jsonl, loggers, plots, rows as rows_lib, summary as summary_lib
from bamboo_jax.recovery import durations, layout as layout_lib
from bamboo_jax.report import contents, events, figures
from bamboo_jax.runtime.profile import products
from bamboo_jax.training import (
    failures as failures_lib,
    run_state as run_state_lib,
    step as step_lib,
)
from bamboo_jax.training.record import charges as charges_lib, step_traces
from bamboo_jax.training.setup import job as job_lib, sizes

_ALONE = "train"  # File of rows of a process with all nodes.
_ROWS_SECS = 5.0  # For the last rows; the folder may hang.
_COUNT_SECS = 4.0  # Between counts of compiled programs.
_RATES = {f"{unit}_per_sec": unit for unit in ("tokens", "samples")}
# Events that are shown or counted by others.
WARNING, CHANGED, SKIPPED = "warning", "changed", "skipped"


class _Step(NamedTuple):
  """A committed step, with what was true at its end."""

  done: step_lib.StepRecord
  layout: layout_lib.Layout
  rung: str
  num_updates: int  # Of the parameters, before this step.
  num_dropped: int  # Samples that it left out.
  charges: account_lib.Account


class Journal:
  """Journal, trace and summary of a run, and its progress; the workdir must exist.

  Attributes:
    during: See `Charges.during`.
    shown: Metrics of the last step that this member wrote.
    failures: Those of loggers and callbacks, among others.
  """

  def __init__(
      self, job: job_lib.Job, given: job_lib.Environment, state: run_state_lib.RunState
  ) -> None:
    self._job, self._given, self._state = job, given, state
    self._config, self._workdir = job.config, given.workdir
    self._charges = charges_lib.Charges(given.started_secs)
    self.during = self._charges.during
    self._price = sizes.find_price(job.config)
    self._totals = account_lib.Account()
    self._unit = job.task.batches.source.unit  # Of the rate; None: as in the first step.
    self._lines: jsonl.MetricsWriter | None = None  # None: another member writes.
    self._background: list[loggers.Background] = []  # Loggers of the package.
    self._own: list[tuple[str, Any]] = []  # Loggers and callbacks of the user, each with a name.
    num_traced = max(1, job.config.metrics.trace_steps)
    make_rows = lambda step: step_traces.RowLogger(
        self._workdir.rows, given.name or _ALONE, num_steps=num_traced
    )
    self._rows = loggers.Background("rows", make_rows, step=0, close_secs=_ROWS_SECS)
    profiles = self._workdir.profiles / given.name
    self._profiler = step_traces.Profiler(job.config.metrics.profiled, profiles)
    self.shown: dict[str, float] = {}
    self.failures = failures_lib.Failures()
    self._last: _Step | None = None
    self._started_at: int | None = None
    self._has_warned = False
    self._counted_secs = 0.0  # When compiled programs were counted.
    self._owners: list[list[base.NodeId]] = []  # Last written.

  def begin(self, step: int) -> None:
    """Starts the journal at `step`, at the start of a run; later steps are repeated."""
    self._started_at = step
    self._profiler.note_done(step)
    logs.note_step(step)
    warnings, num_steps = self._job.find_warnings(), self._config.num_steps
    for text in (sizes.describe_batch(self._config), self._job.describe_plan()):
      self.show(text)
    self._charges.begin(self._state.full_layout)
    if step >= num_steps:
      self.show(f"resumed_from_step={step}" * (step > 0))
      self.show(f"nothing to do: {step} of {num_steps=} steps are done")
    if not self._state.is_writer:
      return
    text = json.dumps(self._config.to_json(), indent=2)
    base.write_atomically(self._workdir.config, text + "\n")
    if manifest := self._job.task.batches.source.manifest:
      base.write_atomically(self._workdir.data, corpus.render_manifest(manifest))
    if step < num_steps:
      step_traces.clear(self._workdir.rows)  # Of an earlier run.
      try:
        self._workdir.clear_rows()
      except OSError as error:
        logging.warning("%s", error)
      self._end_lines()  # It may have started at another step.
      self._open(step, begins=True)
      if self.failures.error is not None:
        raise self.failures.error
      self._roll_back(jsonl.START, step)
      for text in warnings:
        self.write_event(WARNING, step=step, values={"text": text})
      for change in self._state.writer.changes:
        values = dataclasses.asdict(change) | {"text": change.render()}
        self.write_event(CHANGED, step=step, values=values)

  def show(self, text: str) -> None:
    """Shows a line, unless it is empty."""
    if self._given.progress is not None and text:
      self._given.progress.show_text(text)

  def write_step(self, done: step_lib.StepRecord) -> None:
    """Writes a committed step, and the recoveries in it."""
    layout, batch = self._state.full_layout, self._job.plan.batch
    kept = sum(map(len, layout.shares)) / batch.num_shares
    num_dropped = round(batch.batch_size * (1 - kept))
    self._charges.add_step(done, layout, batch.batch_size - num_dropped)
    last = _Step(
        done,
        layout,
        rung=done.recoveries[-1].rung if done.recoveries else self._state.rung,
        num_updates=self._state.num_updates - (not done.skipped),
        num_dropped=num_dropped,
        charges=self._charges.take(),
    )
    self._profiler.note_done(done.steps)
    logs.note_step(done.steps)
    self._rows.log(done.steps, {"done": done, "with_plan": self._state.is_writer})
    if not self._state.is_writer:
      self._last = last
      self._end_lines()  # Another member writes from now on.
      return
    self._ensure(done.steps - 1)
    self._last = last
    self._write(last)
    for recovery in done.recoveries:
      self.write_event("recovery", step=done.steps, values=dataclasses.asdict(recovery))

  def welcome(self, boot_secs: Mapping[base.NodeId, float], *, in_step: bool) -> None:
    """Charges and writes joining nodes; see `Charges.welcome`."""
    if come := self._charges.welcome(boot_secs, None if in_step else self._state.full_layout):
      values = {"boot_secs": {str(n): come[n] for n in come}, "names": [*map(logs.name_of, come)]}
      self.write_event("join", step=self._state.steps + 1, values=values)  # The step they join.

  def write_event(self, event: str, *, step: int, values: Mapping[str, Any]) -> None:
    """Writes and shows an event after `step` steps, such as an evaluation."""
    if self._state.is_writer:
      self._ensure(step)
      self._append({"event": event, "step": step, **values})

  def explain(self, reason: str, *, step: int | None = None, at_once: bool = False) -> None:
    """Shows and writes why training pauses, by default before the next step.

    It is shown if the pause is long, or `at_once`.
    """
    if self._given.progress is not None:
      self._given.progress.explain(reason, at_once=at_once)
    if self._state.is_writer:
      steps, flags = self._state.steps, {"at_once": True} if at_once else {}
      self._ensure(steps)
      line = {"event": "pause", "step": step or steps + 1, "reason": reason, **flags}
      self._append(line, is_shown=False)

  def explain_wait(self, reason: str, *, acts: bool) -> None:
    """Explains a wait for nodes; without a layout nobody writes, so the one that `acts` does."""
    self.explain(reason)
    if acts and not self._state.layout.nodes:
      life, lines = self._read()
      step = 1 + max((line["step"] for line in lines), default=0)
      try:
        with contextlib.closing(self._append_to(life)) as writer:
          writer.write_step(step, {"event": "pause", "reason": reason})
      except OSError as error:  # The wait goes on, with a full disk as well.
        logging.warning("Why this run waits is not in its log: %s", error)

  def count_compiled(self, num_done: int, num_programs: int) -> None:
    """Explains a pause every few seconds by the number of compiled programs."""
    now = time.monotonic()
    if num_done == 1:
      self._counted_secs = now
    elif now > self._counted_secs + _COUNT_SECS and num_done < num_programs:
      self._counted_secs = now
      self.explain(f"{num_done} of {num_programs} programs are compiled")

  def roll_back(self, step: int) -> None:
    """Notes that the steps after `step` will be repeated."""
    self._charges.charge("lost")
    if self._state.is_writer:
      self._ensure(step)
      for logger in self._background:
        logger.rewind(step)
      self._roll_back(jsonl.ROLLBACK, step)
    self._last = None
    self._charges.take()

  def flush(self) -> None:
    """Waits until rows are written, and ends the profile of this member."""
    self._profiler.stop()
    self._rows.close()
    if not self._state.is_writer:
      self.push()
    if error := self._rows.take_error():
      logging.warning("%s", error)

  def write_summary(self, step: int, digests: layer_arrays.Digests) -> None:
    """Writes summary and plots after `step` steps, unless already written."""
    self._ensure(step)
    self._charges.charge()
    self._totals += self._charges.take()
    cost = {"event": "cost", "step": step, **self._account}
    lines = [*jsonl.read_lines(self._workdir.metrics), cost]
    summary = fold_summary(self._job, lines, digests, is_new=self._started_at != step)
    has_trained, before = summary["median_step_secs"] is not None, ""
    with contextlib.suppress(OSError, ValueError):
      before = summary_lib.read_summary(self._workdir.summary).state_sha256
    if not has_trained and before == summary["state_sha256"]:
      self._push_last()
      return
    self._append(cost)
    plots_due = has_trained and self._config.metrics.plots
    if plots_due:
      self.explain("figures are drawn", step=step)
    for logger in self._background:
      logger.close()
    self._warn_of_loggers()
    try:  # Last: a launcher ends all processes once it sees the summary.
      self._draw(lines, with_figures=plots_due)
    except base.MissingExtraError as error:
      logging.log_first_n(logging.WARNING, "No plots. %s", 1, error)
    finally:
      self.push()
      text = json.dumps(summary, indent=2, allow_nan=False)
      base.write_atomically(self._workdir.summary, text + "\n")
      self._push_last()

  def push(self) -> None:
    """Copies what has changed to the bucket, if the run is in one; warns if it cannot."""
    try:
      self._workdir.push(self._given.name, is_writer=self._state.is_writer)
    except OSError as error:
      self.show(f"warning: {error}")

  def _push_last(self) -> None:
    try:
      self._workdir.push_last(self._given.name)
    except OSError as error:
      raise base.NodeFailedError(mirror.explain_left(self._workdir.root, error)) from error

  def close(self) -> None:
    """Closes journal, rows, loggers and callbacks."""
    self._rows.close()
    before = self.failures.error
    self._end_lines()
    if self.failures.error is not before:  # Too late to end the run.
      logging.warning("%s", self.failures.error)

  def _end_lines(self) -> None:
    if self._lines is not None:
      self._lines.close()
      self._call("close")
      self._lines, self._background, self._own = None, [], []

  def _write(self, last: _Step) -> None:
    done, job = last.done, self._job
    num_training = len(last.layout.nodes)
    self._totals += last.charges
    self._unit = self._unit or done.sums.unit(job.plan.batch.batch_size)
    shown = {
        "loss": done.sums.mean_loss,
        **dict(zip(job.task.whole.metrics, done.sums.metrics, strict=True)),
        "learning_rate": job.task.schedule.rate_at(last.num_updates),
        f"{self._unit}_per_sec": done.sums.weight / done.secs,
    }
    if span_secs := done.measured.span_secs:
      shown["bubble_pct"] = 100 * (1.0 - done.measured.passes.total / (span_secs * num_training))
    shown["step_ms"] = 1e3 * done.secs
    if self._peak_secs is not None:
      shown["mfu_pct"] = 100 * self._peak_secs / (done.secs * num_training)
    account = self._totals.charge(self._price, market=self._config.cost.market)
    shown["goodput_pct"] = 100 * account.node_time.goodput
    if account.price is not None:
      shown["usd"] = account.usd
    self.shown = shown
    more = self._account | {
        "grad_norm": done.sums.grad_norm,
        "samples_seen": done.steps * job.plan.batch.batch_size,
        "samples_dropped": last.num_dropped,
        "phase_ms": {k: 1e3 * v for k, v in done.phase_secs.items()},
        "view": done.view,
    }
    if done.redundant:
      more["redundant"] = done.redundant
    if done.skipped:  # First: the line of a step is the last one about it.
      self._append({"event": SKIPPED, "step": done.steps, "reason": done.skipped})
    owners = last.layout.computing
    if owners != self._owners:
      self._owners = owners
      names = {str(n): logs.name_of(n) for n in sorted(last.layout.live)}
      values = {"owners": owners, "rung": last.rung, "at_secs": time.perf_counter()}
      self._append({"event": "layout", "step": done.steps, **values, "names": names})
    self._append({"step": done.steps, **shown, **more})

  def _append(self, line: dict[str, Any], *, is_shown: bool = True) -> None:
    """Appends a line, shows it, and hands it to loggers and callbacks."""
    assert self._lines is not None, "Another member writes the journal."
    try:
      self._lines.write_step(line["step"], line)
    except OSError as error:  # The next call writes it first.
      if not self._has_warned:
        self.show(
            f"warning: Cannot write {self._workdir.metrics}: "
            f"{error.strerror or error}. Training continues; lines are kept."
        )
      self._has_warned = True
    if self._given.progress is not None and is_shown:
      events.show(self._given.progress, line)
    values = {k: v for k, v in line.items() if k not in ("event", "step")}
    if event := line.get("event"):
      self._call("event", event, line["step"], values)
    else:
      self._call("log", line["step"], values)
      self._warn_of_loggers()

  def _ensure(self, step: int) -> None:
    """Opens the journal; if a dead member wrote it, goes on after `step`.

    Writes the last step if the dead member did not.
    """
    if self._lines is None:
      last = self._last
      step = last.done.steps if last else step
      lines = self._open(step)
      is_told = any(l["step"] == step for l in lines if "event" not in l)
      if last is not None and not is_told:  # It died right after the commit.
        self._write(last)

  def _open(self, step: int, *, begins: bool = False) -> Sequence[jsonl.Line]:
    """Opens the journal after `step`; reads the totals, and returns its lines."""
    life, lines = self._read()
    self._totals = account_lib.read_last(lines, up_to_step=None if begins else step)
    rates = [unit for line in lines for rate, unit in _RATES.items() if rate in line]
    self._unit = next(iter(rates), self._unit)  # It stays what it was.
    self._lines = self._append_to(life + begins)
    self._open_loggers(step)
    return lines

  def _read(self) -> tuple[int, Sequence[jsonl.Line]]:
    """Returns the newest life in the journal, and its lines that count."""
    try:
      self._workdir.pull()  # A member on another machine may have written it so far.
    except OSError as error:
      logging.warning("%s", error)
    reader = jsonl.MetricsReader(self._workdir.metrics)
    lines = jsonl.fold(reader.read())
    return reader.life, lines

  def _append_to(self, life: int) -> jsonl.MetricsWriter:
    locks = bool(self._workdir.url)
    return jsonl.MetricsWriter(
        self._workdir.metrics, life=life, member=self._given.name, locks=locks
    )

  def _open_loggers(self, step: int) -> None:
    """Makes loggers, which forget the steps after `step`, and takes callbacks."""
    config, folder = self._config, self._workdir.metrics.parent
    make: dict[str, Callable[[int], loggers.Logger]] = {
        "csv": functools.partial(loggers.CsvFile, folder),
        "tensorboard": functools.partial(loggers.TensorBoard, folder),
        "wandb": lambda step: loggers.WandbRun(folder, config.to_dict()),
    }
    for name in loggers.parse_names(config.metrics.logger):
      if name in make:
        self._background.append(loggers.Background(name, make[name], step=step))
      else:
        what = f"logger {name!r}"
        self._call_own(what, self._add_own, what, name)
    nothing = lambda *unused: None
    for callback in self._given.callbacks:
      one = types.SimpleNamespace(log=callback, event=nothing, close=nothing)
      self._own.append(("callback", one))

  def _add_own(self, what: str, name: str) -> None:
    logger = loggers.make_logger(name, self._config, self._workdir.metrics.parent)
    self._own.append((what, logger))

  def _call(self, method: str, *arguments: Any) -> None:
    for logger in self._background:
      getattr(logger, method)(*arguments)
    self._own = [
        (what, logger)
        for what, logger in self._own
        if self._call_own(what, getattr(logger, method), *arguments)
    ]

  def _call_own(self, what: str, call: Callable[..., object], *arguments: Any) -> bool:
    """Calls code of the user; returns False if it raises."""
    try:
      call(*arguments)
      return True
    except Exception as error:  # Whatever the code of the user raises.
      raised = base.CallbackError(f"The {what} raised {base.describe_error(error)}")
      raised.__cause__ = error
      self.failures.add(raised, f"{raised}")
      return False

  def _warn_of_loggers(self) -> None:
    for logger in self._background:
      if error := logger.take_error():
        values = {"text": f"{error}. Training continues."}
        self.write_event(WARNING, step=self._state.steps, values=values)

  def _roll_back(self, event: str, step: int) -> None:
    """Writes an event after which the steps after `step` are repeated."""
    self._totals += self._charges.take()
    lines = jsonl.read_lines(self._workdir.metrics)
    self._totals = self._totals.roll_back(account_lib.read_last(lines, up_to_step=step))
    self._append({"event": event, "step": step, **self._account})

  @property
  def _account(self) -> dict[str, object]:
    """The totals so far, as an entry of a line."""
    return {account_lib.KEY: self._totals.to_line()}

  @functools.cached_property
  def _peak_secs(self) -> float | None:
    """Time of the products of a step at the peak of a node; None if that is not known.

    Traces the model. Attention by a fused kernel is no product and is not counted.
    """
    whole, mesh = self._job.task.whole, self._config.node.mesh
    kind, dtype = jax.local_devices()[0].device_kind, whole.model.fingerprint.get("dtype", "")
    if (peak := machines.find_peak_tflops(kind, dtype=dtype)) is None:
      return None
    flops = products.step_flops(whole) * self._job.plan.batch.total_microbatches
    return flops / (1e12 * peak * mesh.data * mesh.tensor)

  def _draw(self, lines: Sequence[jsonl.Line], *, with_figures: bool) -> None:
    """Writes the trace, if a step was measured, and figures."""
    steps = rows_lib.read_steps(self._workdir.rows, _of_event(lines, "recovery"))
    if any(step.measured for step in steps):
      rows_lib.write_trace(self._workdir.trace, steps)
    if with_figures:
      formats = plots.parse_formats(self._config.metrics.figure_format)
      run = contents.read_run(self._workdir.root, {})
      plots.save_figure(figures.draw_losses([run]), self._workdir.loss_plot, formats)
      if run["rows"] and run["rows"]["measured"]:
        plots.save_figure(figures.draw_step(run["rows"]), self._workdir.schedule_plot, formats)


def fold_summary(
    job: job_lib.Job, lines: Sequence[jsonl.Line], digests: layer_arrays.Digests, *, is_new: bool
) -> dict[str, Any]:
  """Returns the summary of a run from its lines, as `summary_lib.Summary` is written.

  The last line tells the step. Unless it `is_new`, nothing was done since the
  run was resumed.
  """
  plan, order, steps = job.plan, job.task.whole.names, lines[-1]["step"]
  samples_seen = steps * plan.batch.batch_size
  starts = [i for i, line in enumerate(lines) if line.get("event") == jsonl.START]
  since = lines[starts[-1] if starts else 0 :]
  resumed_from, found = since[0]["step"] if starts else 0, _of_event(since, "recovery")
  recoveries = [*{line["view"]: line for line in found}.values()]  # One per view.
  if not is_new:
    resumed_from, since = steps, ()
  reports = zip(recoveries, durations.report(recoveries, {}), strict=True)
  trained = [line for line in since if "event" not in line]
  bubbles = [line["bubble_pct"] / 100 for line in trained if "bubble_pct" in line]
  losses = [line.get("loss") for line in lines if "event" not in line]
  account = account_lib.read_last(lines).charge(
      sizes.find_price(job.config), market=job.config.cost.market
  )
  return {
      "steps": steps,
      "final_loss": losses[-1] if losses else None,
      "params_sha256": layer_arrays.params_sha256(digests, order),
      "state_sha256": layer_arrays.state_sha256(digests, order, samples_seen=samples_seen),
      "samples_seen": samples_seen,
      "resumed_from_step": resumed_from,
      "median_step_secs": summary_lib.median_but_first([l["step_ms"] / 1e3 for l in trained]),
      "bubble_fraction": summary_lib.median_but_first(bubbles),
      "skipped_steps": len({line["step"] for line in _of_event(lines, SKIPPED)}),
      "epochs": job.task.batches.source.epochs(samples_seen),
      "samples_dropped": sum(line.get("samples_dropped", 0) for line in lines),
      "evaluation": next(iter(_of_event(since, "eval")[::-1]), None),
      "predicted_step_secs": job.predicted.step_time.total_ms / 1e3,
      "predicted_bubble_fraction": job.predicted.timeline.mean_bubble,
      "redundancy": _mean_redundancy(job.config.redundancy.mode, trained),
      "costs_measured": plan.profile.measured,
      "partition": list(plan.partition.bounds),
      "recoveries": [{**line, **more} for line, more in reports],
      "cost": account.as_dict(),
  }


def _mean_redundancy(mode: str, steps: Sequence[jsonl.Line]) -> dict[str, Any] | None:
  """Returns the means over steps that filled waits; None without any."""
  found = [line["redundant"] for line in steps if "redundant" in line]
  if not found:
    return None
  means = {k: statistics.fmean(one[k] for one in found) for k in found[0]}
  return {"mode": mode, "steps": len(found), **means}


def _of_event(lines: Sequence[jsonl.Line], event: str) -> list[dict[str, Any]]:
  """Returns the lines of an event, without its name."""
  found = (line for line in lines if line.get("event") == event)
  return [{k: v for k, v in line.items() if k != "event"} for line in found]
