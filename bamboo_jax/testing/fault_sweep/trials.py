"""Trains a few steps in which nodes die, and compares with nobody dying.

Equal to the bit must be the loss of each step, and at the end the state of
every stage in every pipeline, replicas included. Nodes are made anew for each
case, but not their programs, so a case takes little longer than its steps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import dataclasses
import pathlib
import tempfile
from typing import Any

import jax
import ml_collections
import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.recovery import durations, layout as layout_lib
from bamboo_jax.runtime import devices as devices_lib, executor as executor_lib, program_cache
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.runtime.spmd import executor as spmd_executor
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import redundancy, timeline as timeline_lib
from bamboo_jax.testing import redone as redone_lib
from bamboo_jax.testing.fault_sweep import cases as cases_lib, storm as storm_lib
from bamboo_jax.train import environment, worker as worker_lib
from bamboo_jax.train.members import cohort as cohort_lib, local_cohort
from bamboo_jax.train.record import workdir as workdir_lib
from bamboo_jax.train.setup import accept, build, executors, job as job_lib, preparation, sizes


class TroubleError(AssertionError):
  """Steps with deaths differ from those without."""


@dataclasses.dataclass(frozen=True)
class TrialOutcome:
  """The results of a training run.

  Attributes:
    losses: Of each step.
    layers: Bits of the state of each layer, for each pipeline.
    rungs: Of the recoveries, in order.
    owners: For each pipeline, the node of each stage at the end.
    redone: What programs repeated after each death.
  """

  losses: tuple[float, ...]
  layers: Sequence[Mapping[str, Sequence[bytes]]]
  rungs: tuple[str, ...]
  owners: tuple[tuple[int, ...], ...]
  redone: tuple[redone_lib.Redone, ...]


def prepare(
    config: config_lib.Config,
    cache: program_cache.ProgramCache,
    whole: spec_lib.StageSpec | None = None,
) -> preparation.Prepared:
  """Returns the task of a config; `cache` may have programs of `whole`."""
  task = build.make_task(config)
  if whole is not None:
    task = dataclasses.replace(task, whole=whole)
  return preparation.Prepared(task, cache)


class Trials:
  """Cases of one config, and the run without deaths to compare them with."""

  def __init__(
      self,
      config: config_lib.Config | ml_collections.ConfigDict,
      *,
      cache: program_cache.ProgramCache,
      whole: spec_lib.StageSpec | None = None,
      num_late: int | None = None,
  ) -> None:
    """Plans.

    Args:
      whole: The model whose programs `cache` has, if any.
      num_late: How many nodes may come; by default, all once more.
    """
    config = accept.accept(config).changed({"metrics.plots": False})
    self._cache = cache
    self._wanted: dict[int, TrialOutcome] = {}  # By number of steps.
    num_late = num_late or sizes.num_nodes(config)  # Should all die.
    place = devices_lib.place_nodes(base.nodes(sizes.num_nodes(config) + num_late))
    make = lambda config, whole: job_lib.make_job(
        config, devices=place, prepared=prepare(config, cache, whole)
    )
    self._job = make(config, whole)
    self.whole = self._job.task.whole
    less: dict[str, Any] = {"redundancy.spares": 0}
    if not executors.is_program(config):  # Another mode is another program.
      less["redundancy.mode"] = "none"
    plain = config.changed(less)
    self._plain = make(plain, self.whole)
    layout = self._job.first_layout
    plans = layout_lib.StepPlans(self._job.rows)
    place_of = {n: layout.places_of([n])[0] for n in layout.nodes}
    self.steps = cases_lib.Steps(
        order=tuple(place_of[node] for node, _ in timeline_lib.linearize(plans.whole(layout))),
        depths=tuple(p.partition.num_stages for p in layout.pipelines),
    )

  def run(self, case: cases_lib.Case | storm_lib.Storm) -> TrialOutcome:
    """Trains with the deaths of a case.

    Raises `TroubleError` if the results differ from those without deaths,
    `base.ReplicaMismatchError` if a replica differs from its owner.
    """
    num_steps = cases_lib.FIRST_STEP + case.num_steps
    outcome = self._train(self._job, case.faults, num_steps)
    wanted = self.want(num_steps)
    if outcome.losses != wanted.losses:
      raise TroubleError(f"losses {outcome.losses}, want {wanted.losses}")
    for pipeline, layers in enumerate(outcome.layers):
      want = wanted.layers[0]
      if differing := [name for name in want if layers[name] != want[name]]:
        raise TroubleError(f"pipeline {pipeline} has another state of {', '.join(differing)}")
    for redone in outcome.redone:
      if redone.again > redone.at_most:
        raise TroubleError(f"too much was done again: {redone}")
    return outcome

  def begin(
      self,
      faults: Sequence[faults_lib.Fault],
      *,
      workdir_path: str,
      wrap: Callable[[cohort_lib.Cohort], cohort_lib.Cohort] | None = None,
  ) -> worker_lib.Worker:
    """Returns a worker on new nodes; `workdir_path` must exist."""
    return begin(self._with_engine(self._job), faults, workdir_path, wrap=wrap)

  def want(self, num_steps: int) -> TrialOutcome:
    """Returns the outcome of steps in which nobody dies."""
    if num_steps not in self._wanted:
      self._wanted[num_steps] = self._train(self._plain, (), num_steps)
    return self._wanted[num_steps]

  def _with_engine(self, job: job_lib.Job) -> job_lib.Job:
    """Returns the job with nodes that have no state yet."""
    engine = build.make_engine(
        job.config,
        job.task,
        job.plan,
        cache=self._cache,
        devices=job.engine.devices,
        segments=job.rules.segments,
    )
    return dataclasses.replace(job, engine=engine)

  def _train(
      self, job: job_lib.Job, faults: Iterable[faults_lib.Fault], num_steps: int
  ) -> TrialOutcome:
    with tempfile.TemporaryDirectory() as folder:
      worker = begin(self._with_engine(job), faults, folder)
      redone = record_redone(worker._step.executor)
      if isinstance(faults, storm_lib.Storm):
        faults.attach(worker)
      with contextlib.closing(worker._writer):  # It may be saving yet.
        worker.run(stop_at=num_steps)
      lines = jsonl.read_lines(pathlib.Path(folder) / "metrics.jsonl")
    engine = worker.engine
    prints = replicas.take_prints(engine, base.StepId(num_steps))
    replicas.compare([prints], engine.specs)
    events = [line for line in lines if line.get("event") == "recovery"]
    for wrong in filter(None, map(durations.find_disorder, events)):
      raise TroubleError(f"a recovery is not in order: {wrong}")
    return TrialOutcome(
        losses=jsonl.column(lines, "loss")[1],
        layers=[bits_of(engine.layer_states(p)) for p in range(len(engine.owners))],
        rungs=tuple(event["rung"] for event in events),
        owners=tuple(engine.owners),
        redone=tuple(redone),
    )


def begin(
    job: job_lib.Job,
    faults: Iterable[faults_lib.Fault],
    folder: str | pathlib.Path,
    *,
    wrap: Callable[[cohort_lib.Cohort], cohort_lib.Cohort] | None = None,
) -> worker_lib.Worker:
  """Returns a worker that hosts all nodes of a job; `folder` must exist."""
  cohort = local_cohort.LocalCohort(sizes.num_nodes(job.config))
  given = environment.Environment(
      cohort=wrap(cohort) if wrap else cohort,
      workdir=workdir_lib.Workdir(pathlib.Path(folder)),
      faults=faults,
      director=cohort,
  )
  return worker_lib.Worker(job, given)


def record_redone(executor: executor_lib.Executor) -> list[redone_lib.Redone]:
  """Returns a list that grows with every death in the middle of a step."""
  found: list[redone_lib.Redone] = []
  if not isinstance(executor, spmd_executor.Programs):
    return found
  programs, plan = executor.programs, executor.plan

  def record(
      timelines: Sequence[timeline_lib.Timeline], filling: redundancy.StepFilling | None = None
  ) -> None:
    before = dict(programs.runs)
    plan(timelines, filling)
    for share, run in programs.runs.items():
      if run.is_rest and run is not before.get(share):
        found.append(redone_lib.of_run(run, before[share]))

  executor.plan = record
  return found


def bits_of(layers: Mapping[str, spec_lib.LayerState]) -> dict[str, list[bytes]]:
  """Returns the bytes of the arrays of each layer."""
  return {
      name: [np.asarray(a).tobytes() for a in jax.tree.leaves(state)]
      for name, state in layers.items()
  }
