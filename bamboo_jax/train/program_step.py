"""Runs each step as one program, and by rows after a death.

A death takes all results of the program with it, so its step is run again:
survivors give the state of before the step, own layers and replicas, to their
rows, which train until every stage has a node of its own again. Then a program
for the mesh of the new nodes takes the state back. Rows also evaluate and save,
since a program only trains.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import time

from bamboo_jax.base import types
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.runtime.spmd import engine as engine_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train import step as step_lib
from bamboo_jax.train import sums as sums_lib
from bamboo_jax.train.members import cohort as cohort_lib
from bamboo_jax.train.record import step_passes
from bamboo_jax.train.setup import build_program
from bamboo_jax.train.setup import job as job_lib


class ProgramStep:
  """Runs steps like `step.Step`, one of which stands by as `rows`.

  The stages of `job` must be made of whole blocks, and its engine be that of
  `rows`.
  """

  def __init__(
      self,
      rows: step_lib.Step,
      job: job_lib.Job,
      *,
      cohort: cohort_lib.Cohort,
      director: cohort_lib.Director | None,
  ) -> None:
    self._rows = rows
    self._job = job
    self._nodes = job.engine
    self._cohort = cohort
    self._director = director
    parts = (job.config, job.task, job.plan)
    self._plan = build_program.make_program(*parts)
    self._refresh_bytes = build_program.refresh_bytes(*parts)
    self._programs: dict[tuple, engine_lib.SpmdEngine] = {}
    # Holds the state; None while rows do.
    self._program: engine_lib.SpmdEngine | None = None
    self._result: step_lib.StepResult | None = None

  @property
  def measured(self) -> Sequence[recorder_lib.Measured]:
    """Measured instructions of the step; none of a program."""
    return () if self._result else self._rows.measured

  @property
  def start_secs(self) -> float:
    """When the step began, on `time.perf_counter`."""
    return self._result.start_secs if self._result else self._rows.start_secs

  @property
  def planned_passes(self) -> step_passes.Passes | None:
    """The planned passes of a program; None of rows, which are measured."""
    if self._result is None:
      return None
    timelines = self._plan.plan.timelines
    return step_passes.plan(timelines, secs=self._result.secs)

  def begin(
      self, step: int, feed: node_lib.FeedFn, due: faults_lib.FaultsDue
  ) -> None:
    """See `step.Step`; a program takes the state if all nodes are there."""
    if self._program is None and self._has_all_nodes():
      layers = self._nodes.layer_states()
      self._program = self._make_program()
      self._program.compile()
      self._program.set_state(layers)
      self._drop_rows()
    self._step, self._feed, self._due = step, feed, due
    self._result = None
    self._rows.begin(step, feed, due)

  def plan(self, timelines: Sequence[timeline_lib.Timeline]) -> None:
    """See `step.Step`."""
    self._rows.plan(timelines)

  def run_until_vote(self) -> None:
    """See `step.Step`; a program does not survive a death in its step.

    The first death precedes the program; the rows that run the step again take
    the others in their time.
    """
    if self._program is None:
      self._rows.run_until_vote()
      return
    while due := self._due.pop_first():
      self._director.strike(due)
      self._cohort.check()
    self._cohort.check()
    start = time.perf_counter()
    found = self._program.step(self._step, self._feed)
    secs = time.perf_counter() - start
    skipped = sums_lib.judge(
        self._step,
        **dataclasses.asdict(found),
        on_nonfinite=self._job.config.optimizer.on_nonfinite,
    )
    self._result = step_lib.StepResult(
        **dataclasses.asdict(found),
        secs=secs,
        phase_secs={"program": secs},
        measured=(),
        start_secs=start,
        refresh_bytes=self._refresh_bytes,
        skipped=skipped,
    )

  def vote(self, vote: step_lib.Vote) -> dict[int, step_lib.Vote]:
    """See `step.Step`; the program has updated the state already."""
    if self._result is None:
      return self._rows.vote(vote)
    votes = self._cohort.gather(f"vote {self._step}", vote)
    self._cohort.settled(self._step + 1)
    return votes

  def apply(self) -> None:
    """See `step.Step`."""
    if self._result is None:
      self._rows.apply()

  def result(self) -> step_lib.StepResult:
    """See `step.Step`."""
    return self._result or self._rows.result()

  def compile(self, *, evaluate: bool) -> None:
    """Compiles the program, and the rows that stand by."""
    self._rows.compile(evaluate=evaluate)
    if self._has_all_nodes():
      self._make_program().compile()

  @property
  def is_applied(self) -> bool:
    """See `step.Step`."""
    return self._result is not None

  def prints(self, steps: int) -> replicas.Prints:
    """See `step.Step`."""
    if self._program is None:
      return self._rows.prints(steps)
    engine, by_layer = self._nodes, {}
    for stage, spec in enumerate(engine.specs):
      by_layer |= dict.fromkeys((layer.name for layer in spec.layers), stage)
    started = {}
    for pipeline, owners in enumerate(engine.owners):
      copies = [(0, self._program.layer_states(pipeline))]
      if self._job.config.redundancy.mode != "none":
        copies.append((1, self._program.replica_states(pipeline)))
      for distance, layers in copies:
        for name, layer in layers.items():
          node = owners[by_layer[name] - distance]
          device = engine.devices[node]
          started.setdefault(node, {})[name] = engine.fingerprints.start(
              layer, device
          )
    return replicas.read_prints(steps, started)

  @contextlib.contextmanager
  def lend_state(self) -> Iterator[None]:
    """Lends the state of the program to rows in a `with` block."""
    if self._program is None:
      yield
      return
    self._nodes.set_state(self._program.layer_states())
    try:
      yield
    finally:
      if self._program is not None:
        self._drop_rows()

  def release(self) -> None:
    """Gives the state to rows until the next step begins."""
    if self._program is not None:
      self._nodes.set_state(self._program.layer_states())
      self._drop_program()

  def bury(self) -> None:
    """See `step.Step`; the surviving state of the program goes to rows."""
    if self._program is None:
      self._rows.bury()
      return
    hosted = self._cohort.hosted
    lost = {
        types.Place(pipeline, stage)
        for pipeline, row in enumerate(self._nodes.owners)
        for stage, node in enumerate(row)
        if node not in hosted
    }
    self._rows.bury()
    if lost:
      layers = self._program.surviving_states(lost)
      if len(layers) == len(self._job.task.layer_names):
        self._nodes.set_state(layers)
      # Else a stage has no copy left, which `agree` will find out.
      self._drop_program()

  def close(self) -> None:
    """Ends the threads that measure."""
    self._rows.close()

  def _has_all_nodes(self) -> bool:
    """Returns whether every stage of the plan has a node of its own."""
    owners = [node for row in self._nodes.owners for node in row]
    plan = self._plan.plan
    is_whole = len(owners) == plan.num_pipelines * plan.num_stages
    return is_whole and len(set(owners)) == len(owners)

  def _make_program(self) -> engine_lib.SpmdEngine:
    owners = tuple(self._nodes.owners)
    if owners not in self._programs:
      self._programs[owners] = build_program.make_engine(
          self._job.config,
          self._job.task,
          self._plan,
          owners=owners,
          devices=self._job.engine.devices,
      )
    return self._programs[owners]

  def _drop_program(self) -> None:
    self._program.drop_state()
    self._program = None

  def _drop_rows(self) -> None:
    for node in self._nodes.nodes.values():
      node.state.clear()


def make_step(
    job: job_lib.Job,
    *,
    cohort: cohort_lib.Cohort,
    director: cohort_lib.Director | None,
) -> step_lib.Step | ProgramStep:
  """Returns the step of a job, by its executor."""
  rows = step_lib.Step(
      job.engine,
      cohort,
      director=director,
      num_microbatches=job.plan.batch.total_microbatches,
      clip_norm=job.config.optimizer.clip_norm,
      on_nonfinite=job.config.optimizer.on_nonfinite,
  )
  if job.is_program:
    return ProgramStep(rows, job, cohort=cohort, director=director)
  return rows
