"""A step whose passes are SPMD programs; its later phases are those of rows.

A death costs the segment in which it happened. The results of earlier segments
are held by the survivors, so the rest of the step is planned as for rows and
runs as programs on the survivors. If nodes would share a device, which programs
cannot, rows repeat the step from its start.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from absl import logging

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.schedule.ticks import check
from bamboo_jax.train import step as step_lib
from bamboo_jax.train.members import cohort as cohort_lib
from bamboo_jax.train.record import step_passes
from bamboo_jax.train.setup import build_program
from bamboo_jax.train.setup import job as job_lib


@dataclasses.dataclass(frozen=True)
class Progress:
  """A member's progress in a step.

  Attributes:
    step: The step; -1 if the member has none that it can continue.
    done: See `spmd.engine.SpmdEngine.done`.
    by_rows: Whether the member runs this step by rows.
  """

  step: int = -1
  done: Mapping[tuple[int, ...], tuple[int, ...]] = dataclasses.field(
      default_factory=dict
  )
  by_rows: bool = False


class ProgramStep(step_lib.Step):
  """Runs the phases of a step; stages of `job` are made of whole blocks.

  Attributes:
    programs: The engine that runs the passes.
    is_by_rows: Whether rows run the passes of this step instead.
  """

  def __init__(self, job: job_lib.Job, **options: Any) -> None:
    super().__init__(job.engine, **options)
    self.is_by_rows = False
    self._program = build_program.make_program(job.config, job.task, job.plan)
    self.programs = build_program.make_engine(
        *(job.config, job.task, self._program),
        rows=job.engine,
        collectives=job.collectives,
    )

  @property
  def planned_passes(self) -> account_lib.NodeTime | None:
    """The planned passes of programs; None for rows, which are measured."""
    if not self.programs.runs:
      return None
    timelines = self._program.plan.timelines
    passes = step_passes.plan(timelines, secs=self._phase_secs["compute"])
    owners = {node for row in self._engine.owners for node in row}
    return passes * (len(owners & self._engine.nodes.keys()) / len(owners))

  @property
  def can_go_on(self) -> bool:
    """Whether the rest of a step can run on the survivors."""
    return self.is_by_rows or self.programs.can_run()

  def align(self, *, is_begun: bool) -> None:
    """See `step.Step`; rewinds to the last segment that all have finished."""
    mine = Progress()
    if is_begun:
      mine = Progress(self._step, self.programs.done(), self.is_by_rows)
    cohort = self._cohort
    said = cohort.gather("segments", mine)
    others = {m: p for m, p in said.items() if p.step == mine.step}
    if is_begun and any(p.by_rows for p in others.values()):
      self._give_up_programs()
    elif is_begun:
      # A member that has not heard of the commit is a step behind.
      by_node = {n: others.get(cohort.host_of(n)) for n in cohort.view.numbers}
      self.programs.rewind({n: p.done if p else {} for n, p in by_node.items()})

  def holdings(self) -> dict[int, holdings_lib.Holdings]:
    """See `step.Step`."""
    return super().holdings() if self.is_by_rows else self.programs.holdings()

  def begin(
      self, step: int, feed: node_lib.FeedFn, due: faults_lib.FaultsDue
  ) -> None:
    """See `step.Step`."""
    super().begin(step, feed, due)
    self.programs.begin(step, feed)
    self.is_by_rows, self.redone = False, {}

  def plan(
      self, timelines: Sequence[timeline_lib.Timeline], filling: None = None
  ) -> None:
    """See `step.Step`; programs fill no waits."""
    super().plan(timelines, filling)
    if self.is_by_rows or not self.programs.can_run():
      self._give_up_programs()
      return
    for pipeline, timeline in enumerate(timelines):
      rows = {node: [] for node in self._engine.owners[pipeline]}
      for slot in timeline.slots:
        rows[slot.node].append(slot.instruction)
      redone = self.programs.plan(rows, pipeline=pipeline)
      self.redone.setdefault(self._cohort.view.number, {}).update(redone)

  def _give_up_programs(self) -> None:
    """Makes rows repeat the step from its start, unless they run it already."""
    if not self.is_by_rows:
      logging.warning(
          "Rows run this step: programs cannot, because nodes would share a "
          "device or send to nodes other than their neighbours. The last bits "
          "of its results may differ from those of programs."
      )
      self.is_by_rows, self.programs.runs = True, {}
      for node in self._engine.nodes.values():
        node.store.clear()

  def _compute(self) -> None:
    if self.is_by_rows:
      super()._compute()
      return
    while not self.programs.is_done:
      self._cohort.check()
      self.programs.start()
      for run in self.programs.running:
        for tick in run.segment:
          for node, own in zip(run.nodes, tick, strict=True):
            for _ in check.passes(own) if node in self._engine.nodes else ():
              self._strike(self._due.pop_at_instruction(node))
      lost = self._engine.nodes.keys() - self._cohort.hosted
      self.programs.finish(lost)
    self.programs.put_sums()


def make_step(
    job: job_lib.Job,
    *,
    cohort: cohort_lib.Cohort,
    director: cohort_lib.Director | None,
) -> step_lib.Step:
  """Returns the step runner for the executor of a job."""
  options = dict(
      cohort=cohort,
      director=director,
      num_microbatches=job.plan.batch.total_microbatches,
      clip_norm=job.config.optimizer.clip_norm,
      on_nonfinite=job.config.optimizer.on_nonfinite,
  )
  if job.is_program:
    return ProgramStep(job, **options)
  return step_lib.Step(job.engine, **options)
