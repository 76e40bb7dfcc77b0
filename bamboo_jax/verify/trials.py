"""Trains a few steps in which nodes die, and compares with nobody dying.

Equal to the bit must be the loss of each step, and at the end the state of
every stage in every pipeline, replicas included. Nodes are made anew for each
case, but not their programs, so a case takes little longer than its steps.
"""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import dataclasses
import functools
import pathlib
import tempfile
from typing import Any
import weakref

import jax
import ml_collections

from bamboo_jax import base, config as config_lib
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.recovery import durations, layout as layout_lib
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.training import cohort as cohort_lib, worker as worker_lib
from bamboo_jax.training.record import workdir as workdir_lib
from bamboo_jax.training.setup import accept, build, job as job_lib, sizes
from bamboo_jax.verify import cases as cases_lib, layouts


class TroubleError(AssertionError):
  """Steps with deaths differ from those without."""


@dataclasses.dataclass(frozen=True)
class TrialOutcome:
  """The results of a training run.

  Attributes:
    losses: Of each step.
    layers: Hashes of each layer, for each pipeline.
    rungs: Of the recoveries, in order.
    owners: For each pipeline, the node of each stage at the end.
    state: Hash of the state of the first pipeline.
  """

  losses: tuple[float, ...]
  layers: Sequence[layer_arrays.Digests]
  rungs: tuple[str, ...]
  owners: tuple[tuple[int, ...], ...]
  state: str


def share(config: config_lib.Config, like: build.Task) -> build.Task:
  """Returns the task of a config with the model and the programs of another."""
  return dataclasses.replace(build.make_task(config), whole=like.whole, programs=like.programs)


# Outcomes of undisturbed runs, by their programs, then by steps and config.
_wanted: weakref.WeakKeyDictionary[Any, dict[str, TrialOutcome]] = weakref.WeakKeyDictionary()


class Trials:
  """Cases of one layout, and the run without deaths to compare them with."""

  def __init__(
      self,
      config: config_lib.Config | ml_collections.ConfigDict,
      *,
      like: build.Task | None = None,
      num_events: int = 0,
      num_devices: int | None = None,
      plain: config_lib.Config | None = None,
  ) -> None:
    """Plans.

    Args:
      like: Has the model and its programs, which trials share with the outcomes of undisturbed
        runs; by default they are made.
      num_events: After each of which all nodes may come again, as they may at the end.
      num_devices: That the nodes share; by default all.
      plain: The undisturbed run; by default that of `config` without redundancy.
    """
    self.config = accept.accept(config).changed({"metrics.plots": False})
    self._plain = plain or layouts.without_deaths(self.config, layouts.SweepLayout())
    devices = jax.devices()[:num_devices]
    nodes = base.nodes(sizes.num_nodes(self.config) * (2 + num_events))
    self._devices = {node: devices[i % len(devices)] for i, node in enumerate(nodes)}
    self.task = like or build.make_task(self.config)
    self._job = self._make_job(self.config)

  @functools.cached_property
  def steps(self) -> cases_lib.Steps:
    layout = self._job.first_layout
    timelines, _ = layout_lib.StepPlans(self._job.rules.plan).whole(layout)
    place_of = {n: layout.places_of([n])[0] for n in layout.nodes}
    return cases_lib.Steps(
        order=tuple(place_of[node] for node, _ in timeline_lib.linearize(timelines)),
        depths=tuple(p.partition.num_stages for p in layout.pipelines),
    )

  def run(self, case: cases_lib.Case | cases_lib.Storm) -> TrialOutcome:
    """Trains with the deaths of a case.

    Raises `TroubleError` if the results differ from those without deaths,
    `base.ReplicaMismatchError` if a replica differs from its owner.
    """
    num_steps = cases_lib.FIRST_STEP + case.num_steps
    outcome = self._train(self._job, case, num_steps)
    wanted = self.want(num_steps)
    if outcome.losses != wanted.losses:
      raise TroubleError(f"losses {outcome.losses}, want {wanted.losses}")
    for pipeline, layers in enumerate(outcome.layers):
      want = wanted.layers[0]
      if differing := [name for name in want if layers[name] != want[name]]:
        raise TroubleError(f"pipeline {pipeline} has another state of {', '.join(differing)}")
    if outcome.state != wanted.state:
      raise TroubleError("it is at another sample")
    return outcome

  def want(self, num_steps: int) -> TrialOutcome:
    """Returns the outcome of steps in which nobody dies."""
    wanted, key = _wanted.setdefault(self.task.programs, {}), f"{num_steps} {self._plain}"
    if key not in wanted:
      wanted[key] = self._train(self._make_job(self._plain), (), num_steps)
    return wanted[key]

  def _make_job(self, config: config_lib.Config) -> job_lib.Job:
    return job_lib.make_job(config, devices=self._devices, task=share(config, self.task))

  def begin(
      self,
      faults: Iterable[faults_lib.Fault],
      *,
      workdir_path: str,
      wrap: Callable[[cohort_lib.Cohort], cohort_lib.Cohort] = lambda cohort: cohort,
      job: job_lib.Job | None = None,
  ) -> worker_lib.Worker:
    """Returns a worker that hosts all nodes, which have no state yet; the folder must exist.

    `job` is by default that of the trials.
    """
    job = job or self._job
    engine = build.make_engine(job.config, job.task, job.rules.plan, devices=job.engine.devices)
    given = job_lib.Environment(
        cohort=wrap(cohort_lib.LocalCohort(sizes.num_nodes(job.config))),
        workdir=workdir_lib.Workdir(pathlib.Path(workdir_path)),
        faults=faults,
    )
    return worker_lib.Worker(dataclasses.replace(job, engine=engine), given)

  def _train(
      self, job: job_lib.Job, faults: Iterable[faults_lib.Fault], num_steps: int
  ) -> TrialOutcome:
    with tempfile.TemporaryDirectory() as folder:
      worker = self.begin(faults, workdir_path=folder, job=job)
      if isinstance(faults, cases_lib.Storm):
        faults.attach(worker)
      with contextlib.closing(worker._writer):  # It may be saving yet.
        worker.run(stop_at=num_steps)
      lines = jsonl.read_lines(pathlib.Path(folder) / "metrics.jsonl")
    engine = worker.engine
    prints = replicas.take_prints(engine, base.StepId(num_steps))
    replicas.compare([prints])
    events = [line for line in lines if line.get("event") == "recovery"]
    for wrong in filter(None, map(durations.find_disorder, events)):
      raise TroubleError(f"a recovery is not in order: {wrong}")
    layers = [layer_arrays.digest(engine.layer_states(p)) for p in range(len(engine.owners))]
    return TrialOutcome(
        losses=jsonl.column(lines, "loss")[1],
        layers=layers,
        rungs=tuple(event["rung"] for event in events),
        owners=tuple(engine.owners),
        state=layer_arrays.state_sha256(
            layers[0], job.task.whole.names, samples_seen=worker.state.steps
        ),
    )
