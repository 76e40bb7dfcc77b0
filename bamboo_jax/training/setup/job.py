"""All parts of a run that are made before it starts: of its config, and of a process.

Those that need no device are made once for many workers: a process that is forked
into workers (`cluster.copies`) imports all modules, reads the data and traces the
programs beforehand. A worker takes the results when it makes its job.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import gc
import json
import os
import threading
import time
from typing import Any

import jax

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.checkpoint import folder, identity as identity_lib, places, writer as writer_lib
from bamboo_jax.cluster import views
from bamboo_jax.exchange import weights
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.plan import planner
from bamboo_jax.recovery import assignment, layout as layout_lib
from bamboo_jax.runtime import compat, engine as engine_lib, executor as executor_lib, rounding
from bamboo_jax.runtime.stage import programs as programs_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.training import cohort as cohort_lib
from bamboo_jax.training.record import workdir as workdir_lib
from bamboo_jax.training.setup import build, sizes

_SLACK = 0.05  # Allowed lengthening of a step relative to the finest shares.
_TRACED = ("forward", "redundant", "backward", "evaluate", "update", "norms", "zeros", "cast")

Executor = executor_lib.Executor | build.Programs

_prepared: list[tuple[config_lib.Config, build.Task]] = []  # One at most.


def prepare(config: config_lib.Config) -> bool:
  """Prepares a job; returns whether this process may be forked afterwards.

  It may not once it has threads or devices, for example because the model's
  code uses them. Raises as `build.make_task` and `build.find_cuts`.
  """
  task = build.make_task(config)
  build.find_cuts(config, task)  # Checks it before nodes start.
  if not build.is_program(config):
    for unit in programs_lib.find_kinds([task.whole]):
      for name in _TRACED:
        task.programs.get(unit).trace(name)
  _prepared[:] = [(config, task)]
  gc.collect()
  gc.freeze()  # Copies share its memory, until one writes to it.
  return threading.active_count() == 1 and not compat.has_devices()


def peek() -> build.Task:
  """Returns the task of the prepared job."""
  ((_, task),) = _prepared
  return task


def take(config: config_lib.Config) -> build.Task:
  """Returns and removes the prepared task of a config; else makes it."""
  if _prepared and _prepared[0][0] == config:
    return _prepared.pop()[1]
  return build.make_task(config)


@dataclasses.dataclass(frozen=True)
class Job:
  """The parts of a run.

  Attributes:
    engine: The local nodes, without state.
  """

  config: config_lib.Config
  task: build.Task
  plan: planner.Plan
  rules: assignment.RecoveryRules
  engine: engine_lib.Engine

  @property
  def fills_waits(self) -> bool:
    """Whether redundant forward passes fill waits as these occur."""
    return self.engine.exchange is not None and not build.is_program(self.config)

  @functools.cached_property
  def first_layout(self) -> layout_lib.Layout:
    """The layout at the start of a run."""
    if self.config.pipeline.layout != "depth":
      nodes = base.nodes(sizes.num_nodes(self.config))
      return self.rules.start(self.rules.planner.fresh(nodes, {}))
    return self.rules.start([*map(self.rules.plan.pipeline, range(self.plan.num_pipelines))])

  @functools.cached_property
  def predicted(self) -> planner.Plan:
    """The plan, with times and timeline of a step with redundant passes."""
    return build.predict_step(self.config, self.task, self.plan)[0]

  def make_executor(self, given: "Environment") -> Executor:
    """Returns the executor of the config, not compiled yet."""
    if not build.is_program(self.config):
      return executor_lib.Executor(self.engine, given.cohort)
    program = build.plan_program(self.config, self.task, self.plan)
    whole = self.task.whole
    return build.Programs(program, whole, self.engine, given.cohort, given.processes)

  def make_writer(
      self, given: "Environment", *, warn: Callable[[base.StepId, str], None]
  ) -> writer_lib.Writer:
    """Returns the checkpoint writer of a member; see `writer.Writer`."""
    config, model, where, cohort = self.config, self.task.whole, given.workdir, given.cohort
    is_program = build.is_program(config)
    settings = {
        **rounding.describe(),
        "code": base.find_code(config.to_json()),
        "model.prng": model.prng,
        "node.deterministic": config.node.deterministic,
        "node.mesh.data": config.node.mesh.data,
        "node.mesh.tensor": config.node.mesh.tensor,
        "pipeline.executor": config.pipeline.executor,
        "pipeline.microbatch_size": self.plan.batch.microbatch_size,
        "pipeline.num_shares": self.plan.batch.num_shares,
        "pipeline.remat": model.remat,
        # Rounding of one program for all stages depends on the cuts.
        "partition": list(self.plan.partition.bounds) if is_program else None,
    }
    return writer_lib.Writer(
        where.checkpoints,
        url=where.checkpoints_url,
        push=lambda is_writer: where.push(given.name, is_writer=is_writer),
        keep=config.checkpoint.keep,
        every_steps=config.checkpoint.every_steps,
        member=cohort.number,
        model=model,
        identity=_identify(config, self.task, settings),
        warn=warn,
        check_fence=lambda: given.check_fence(cohort.view),
        weights=weights.open_later(config.init_from, model.model),
    )

  def describe_plan(self) -> str:
    """Returns the line on the plan of a step."""
    plan = self.plan
    if self.config.pipeline.layout == "depth":
      return (
          f"plan: {plan.num_pipelines} pipelines x {plan.num_stages} stages, "
          f"layers {plan.partition.bounds}, predicted bubble "
          f"{100 * self.predicted.timeline.mean_bubble:.1f} %"
      )
    parts = [p.partition for p in self.first_layout.pipelines]
    join = lambda values: " + ".join(map(str, values))
    return (
        f"plan: {join(p.num_stages for p in parts)} stages, "
        f"{join(map(len, self.first_layout.shares))} shares of "
        f"{plan.batch.microbatches_per_share} microbatches, layers "
        f"{join(p.bounds for p in parts)}"
    )

  def find_warnings(self) -> list[str]:
    """Returns warnings on likely mistakes in the config, a sentence each."""
    batch, predictor = self.plan.batch, self.rules.predictor
    found = self.task.schedule.find_warnings(self.config.num_steps)
    if self.config.pipeline.layout != "depth" and predictor.by_makespan:
      finer = [
          batch.num_pipelines * n
          for n in range(1, batch.num_microbatches + 1)
          if batch.num_microbatches % n == 0 and batch.num_pipelines * n >= batch.num_shares
      ]
      # The fewest with which pipelines finish together.
      enough = predictor.enough_groups(self.first_layout.pipelines, choices=finer, slack=_SLACK)
      if enough > batch.num_shares:
        found.append(
            f"config.pipeline.num_shares={batch.num_shares} is too coarse for these "
            f"pipelines to finish together; {enough} would do."
        )
    return found


# Called with the number of a committed step, from 1, and its metrics by name.
Callback = Callable[[int, Mapping[str, Any]], Any]


@dataclasses.dataclass(frozen=True)
class Environment:
  """The arguments of a worker that depend on its process.

  Attributes:
    name: Name of this member among several; "" if it is alone.
    processes: Runs programs over several processes; None without.
    progress: Shows steps; None if another member does.
    prefetches: Whether to prepare data ahead, in a thread.
    check_fence: Raises `base.FencedError` once the life of the run to which a
      view belongs is over.
    note_done: Records that all steps of the run to which a view belongs are done.
    stops: Returns whether to save and end the run after this step.
    callbacks: Called after every committed step that this member writes.
    started_secs: Start of the local nodes, on `time.perf_counter`.
  """

  cohort: cohort_lib.Cohort
  workdir: workdir_lib.Workdir
  name: str = ""
  processes: build.ProcessRing | None = None
  faults: Iterable[faults_lib.Fault] = ()
  progress: progress_lib.ProgressLine | None = None
  prefetches: bool = False
  check_fence: Callable[[views.View], None] = lambda view: None
  note_done: Callable[[views.View], None] = lambda view: None
  stops: Callable[[], bool] = lambda: False
  callbacks: Sequence[Callback] = ()
  started_secs: float = dataclasses.field(default_factory=time.perf_counter)


def make_job(
    config: config_lib.Config,
    *,
    devices: Mapping[base.NodeId, jax.Device],
    exchange: transport_lib.Transport | None = None,
    task: build.Task | None = None,
) -> Job:
  """Returns the job of a config; `ValueError` if the config is inconsistent.

  Args:
    devices: Device of each local node, including nodes that join later.
    exchange: Transport to other processes; None without.
    task: By default the one that this process has prepared, if any.
  """
  task = task or take(config)
  profile = build.make_profile(config, task)
  plan, templates = build.plan_run(config, task, profile, is_cluster=exchange is not None)
  rules = build.make_rules(config, plan, templates)
  engine = build.make_engine(config, task, rules.plan, devices=devices, exchange=exchange)
  return Job(config, task, plan, rules, engine)


def check_same(config: config_lib.Config, task: build.Task, where: workdir_lib.Workdir) -> None:
  """Raises `base.CheckpointError` if the folder or bucket is of another run.

  Looks at its newest checkpoint that can be read, and warns of those that cannot; workers
  judge what is in them.
  """
  place = places.open_place(where.checkpoints.absolute(), where.checkpoints_url)
  is_there = where.url or where.checkpoints.is_dir()
  for name in reversed(place.find() if is_there else []):
    try:
      meta = place.read(name).meta
    except (OSError, ValueError) as error:
      folder.warn_once(f"{error}", os.getpid())
      continue
    _identify(config, task, {}).check(meta, step=name.step, where=place.where)
    return


def _identify(
    config: config_lib.Config, task: build.Task, settings: dict[str, Any]
) -> identity_lib.RunIdentity:
  plain = config.to_json()
  del plain["name"], plain["study"]  # They decide on nothing.
  # A length that is None in the config follows `num_steps`.
  plain["optimizer"]["schedule_options"] = json.loads(
      json.dumps(dict(task.schedule.options), default=dict)
  )
  return identity_lib.RunIdentity(
      seed=config.seed,
      batch_size=task.batches.batch_size,
      model=task.whole.model.fingerprint,
      data=task.batches.source.fingerprint,
      rounding=settings,
      config=json_lib.flatten(plain),
  )
