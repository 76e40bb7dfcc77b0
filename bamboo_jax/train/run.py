"""Trains from a config, into a workdir; resumes what is there."""

from collections.abc import Sequence
import contextlib
import time
from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.data import prefetch
from bamboo_jax.faults import fault_file
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.plan import planner
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.train import build
from bamboo_jax.train import build_program
from bamboo_jax.train import cost
from bamboo_jax.train import executor as executor_lib
from bamboo_jax.train import failures
from bamboo_jax.train import hooks as hooks_lib
from bamboo_jax.train import loop
from bamboo_jax.train import outputs as outputs_lib
from bamboo_jax.train import program_executor
from bamboo_jax.train import saving
from bamboo_jax.train import step as step_lib

_MEMBER = 0  # This process is the only one.


def train_and_evaluate(
    config: ml_collections.ConfigDict,
    *,
    workdir: str,
    stop_at: int | None = None,
    faults: str | None = None,
) -> bool:
  """Trains until `config.num_steps` steps are done; returns whether they are.

  Args:
    config: See `configs/default.py`.
    workdir: Where everything goes; a run that is there already is resumed.
    stop_at: Return right after this many steps instead, waiting for nothing.
    faults: Path of a file that says which nodes die when, see `faults`.

  Raises:
    ValueError: The config does not fit together, or not to what is in
      `workdir`. Subclasses in `base` tell some cases apart.
    OSError: A file cannot be read or written.
  """
  build.check_config(config)
  build.check_workdir(workdir)
  meter = cost.make_meter(config)
  deaths = build.read_faults(config, faults)
  devices_lib.use_virtual_devices(build.num_nodes(config))
  task = build.make_task(config)
  profile = build.make_profile(config, task)
  is_program = config.pipeline.executor == "spmd"
  cuts = build_program.find_cuts(config, task) if is_program else None
  plan = build.make_plan(config, profile, cuts=cuts)
  with contextlib.ExitStack() as stack:
    run = _Run(config, task, plan, deaths, meter, workdir=workdir, stack=stack)
    return run.train(stop_at)


class _Run:
  """One run in its workdir, from restore to summary."""

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
      faults: tuple[fault_file.Fault, ...],
      meter: cost.Meter,
      *,
      workdir: str,
      stack: contextlib.ExitStack,
  ) -> None:
    self._config = config
    self._task = task
    self._plan = plan
    self._faults = faults
    self._meter = meter
    self._recoveries: list[failures.Recovery] = []
    self._stack = stack
    self._cache = executor_lib.Cache()
    self._executor = self._make_executor()
    meter.watch(self._executor)
    self._paths = build.workdir_paths(workdir)
    stack.enter_context(base.lock_folder(workdir))
    self._saving = saving.make_writer(
        config,
        task,
        plan,
        directory=self._paths["checkpoints"],
        member=_MEMBER,
        warn=self._warn_of_save,
    )
    self._resumed_from = self._restore()
    self._progress = stack.enter_context(
        progress_lib.Progress(
            num_steps=config.num_steps, first_step=self._resumed_from
        )
    )
    is_rolled_back = meter.resume(
        self._paths["metrics"], step=self._resumed_from
    )
    self._writer = stack.enter_context(
        jsonl.MetricsWriter(
            self._paths["metrics"],
            resumed_from_step=self._resumed_from,
            on_error=self._warn_of_log,
        )
    )
    self._log_failed = False
    if is_rolled_back:
      self._note_cost(self._resumed_from)
    self._outputs = outputs_lib.Outputs(
        config,
        task,
        self._executor.plan,
        timelines=self._executor.timelines(),
        paths=self._paths,
        writer=self._writer,
        progress=self._progress,
        meter=meter,
        stack=stack,
    )

  def train(self, stop_at: int | None) -> bool:
    """Trains; see `train_and_evaluate`."""
    config, first_step = self._config, self._resumed_from
    outputs = self._outputs
    outputs.write_facts()
    self._show_start()
    wanted = config.num_steps if stop_at is None else stop_at
    last_step = max(first_step, min(wanted, config.num_steps))
    finished = last_step >= config.num_steps
    if last_step > first_step:
      self._executor.compile(evaluate=config.evaluate.every_steps > 0)
      stops_at = None if finished else last_step
      hooks = [outputs.metrics, outputs.trace]
      self._run_steps(last_step, hooks, stops_at=stops_at)
    layers = self._executor.layer_states()
    if finished:
      with self._meter.during("checkpoint"):
        self._saving.save_last(
            last_step,
            lambda key, said: {_MEMBER: said},
            waiting=lambda: None,
            **self._whose_state(layers),
        )
    self._meter.charge()
    if last_step > first_step:
      self._note_cost(last_step)
    outputs.write_summary(
        last_step,
        layers,
        resumed_from=first_step,
        recoveries=self._recoveries,
    )
    if finished:
      if last_step > first_step:
        outputs.draw()
      self._saving.close()
    return finished

  def _make_executor(self) -> executor_lib.Executor:
    """Makes all nodes, without state."""
    make = executor_lib.RowsExecutor
    if self._config.pipeline.executor == "spmd":
      make = program_executor.ProgramExecutor
    return make(
        self._config,
        self._task,
        self._plan,
        cache=self._cache,
        faults=self._faults,
    )

  def _run_steps(
      self, last_step: int, hooks: list[loop.Hook], *, stops_at: int | None
  ) -> None:
    """Runs steps; restarts from the last checkpoint if a stage is lost."""
    config = self._config
    batches = self._stack.enter_context(
        prefetch.Prefetcher(
            self._task.batches,
            first_step=self._resumed_from,
            num_steps_ahead=config.data.prefetch_steps,
        )
    )
    hooks = [
        *hooks,
        self._note_recoveries,
        hooks_lib.Every(
            config.redundancy.check_every_steps,
            self._check_replicas,
        ),
        hooks_lib.Every(
            config.evaluate.every_steps, self._evaluate, but_not_at=stops_at
        ),
        hooks_lib.Every(
            config.checkpoint.every_steps, self._save, but_not_at=stops_at
        ),
    ]
    first_step = self._resumed_from
    while True:
      with contextlib.closing(self._executor) as executor:
        try:
          loop.run_steps(
              executor,
              first_step=first_step,
              num_steps=last_step,
              microbatch_fn=batches.microbatch,
              hooks=hooks,
          )
          return
        except base.UnrecoverableHereError as lost:
          first_step = self._restart(lost, executor.recoveries)

  def _restart(
      self,
      lost: base.UnrecoverableHereError,
      recoveries: Sequence[failures.Recovery],
  ) -> int:
    """Goes back to the last checkpoint; returns the steps that it has seen."""
    start = time.perf_counter()
    self._meter.charge("lost")
    partition, all_names = self._plan.partition, self._task.layer_names
    names = [all_names[i] for s in lost.stages for i in partition.layers(s)]
    self._progress.show_text(
        f"warning: {lost} Layers without a copy: {', '.join(names)}. "
        "Restarting from the last checkpoint."
    )
    last = recoveries[-1]
    # What has happened does not happen again when its step is run again.
    self._faults = tuple(f for f in self._faults if f.step > last.step)
    self._executor = self._make_executor()
    self._meter.watch(self._executor)
    step = self._restore()
    self._executor.compile(evaluate=self._config.evaluate.every_steps > 0)
    self._meter.roll_back(self._paths["metrics"], step=step)
    self._writer.forget_after(step)
    self._meter.charge("restart")
    self._note_cost(step)
    last.rung = "checkpoint"
    last.plan_secs = time.perf_counter() - start
    self._note(recoveries)
    return step

  def _note_recoveries(self, step: int, result: step_lib.StepResult) -> None:
    del step
    self._note(result.recoveries)

  def _note(self, recoveries: Sequence[failures.Recovery]) -> None:
    for recovery in recoveries:
      self._recoveries.append(recovery)
      self._writer.write_event(
          "recovery", step=recovery.step, values=recovery.as_dict()
      )
      self._progress.show_text(
          f"recovery step={recovery.step} victims={','.join(recovery.victims)} "
          f"rung={recovery.rung}"
      )

  def _note_cost(self, step: int) -> None:
    self._writer.write_event("cost", step=step, values=self._meter.totals)

  def _check_replicas(self, step: int) -> None:
    with self._meter.during("redundant"):
      self._executor.check_replicas(step)

  def _restore(self) -> int:
    """Sets the state and returns the number of steps that it has seen."""
    step = max(self._saving.steps(), default=0)
    self._executor.set_state(self._saving.restore(step, self._task.layer_names))
    return step

  def _save(self, step: int) -> None:
    with self._meter.during("checkpoint"):
      said = {_MEMBER: self._saving.say(step)}
      layers = self._executor.layer_states()
      self._saving.hear(step, said, **self._whose_state(layers))

  def _whose_state(self, layers: executor_lib.Layers) -> dict[str, Any]:
    """Returns whose the state is: this member's, as one stage."""
    state = spec_lib.merge_layers(layers)
    return {"view": 0, "owners": [(_MEMBER,)], "states": {0: state}}

  def _warn_of_save(self, step: int, text: str) -> None:
    self._progress.show_text(f"warning: {text}")
    self._writer.write_event("save_failed", step=step, values={"reason": text})

  def _warn_of_log(self, error: OSError) -> None:
    """Says once that lines of the log have to wait."""
    if not self._log_failed:
      self._progress.show_text(
          f"warning: Cannot write {self._paths['metrics']}: "
          f"{error.strerror or error}. Training goes on; lines are kept."
      )
    self._log_failed = True

  def _evaluate(self, step: int) -> None:
    batches = self._task.batches
    count = build.num_eval_microbatches(self._config, batches)
    with self._meter.during("useful"):
      total, weight = self._executor.evaluate(
          batches.eval_microbatch(*divmod(i, batches.num_microbatches))
          for i in range(count)
      )
    loss = total / weight
    self._writer.write_event("eval", step=step, values={"loss": loss})
    self._progress.show_text(
        progress_lib.render_line({"eval_step": step, "eval_loss": loss})
    )

  def _show_start(self) -> None:
    plan, text = self._executor.plan, self._progress.show_text
    text(
        f"plan: {plan.num_pipelines} pipelines x {plan.num_stages} stages, "
        f"{plan.batch.num_microbatches} microbatches of "
        f"{plan.batch.microbatch_size} samples each, "
        f"layers {plan.partition.bounds}, predicted bubble "
        f"{100 * plan.bubble_fraction:.1f} %"
    )
    if self._resumed_from:
      text(f"resumed_from_step={self._resumed_from}")
    if self._resumed_from >= self._config.num_steps:
      text(
          f"nothing to do: {self._resumed_from} of "
          f"num_steps={self._config.num_steps} steps are done"
      )
