"""A step whose passes are programs; the phases after them are those of rows.

A death takes the segment that it happened in. What segments before it have
returned is what nodes hold, so the rest of the step is planned like that of
rows, and runs as programs of the nodes that are left. Where these cannot, as
some node would own three stages, rows run the step again from its start.
"""

from collections.abc import Sequence
from typing import Any

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


class ProgramStep(step_lib.Step):
  """Runs the phases of a step; stages of `job` are made of whole blocks.

  Attributes:
    programs: Run the passes.
  """

  def __init__(self, job: job_lib.Job, **options: Any) -> None:
    super().__init__(job.engine, **options)
    self._program = build_program.make_program(job.config, job.task, job.plan)
    self.programs = build_program.make_engine(
        job.config, job.task, self._program, rows=job.engine
    )

  @property
  def planned_passes(self) -> step_passes.Passes | None:
    """The planned passes of programs; None of rows, which are measured."""
    if not self.programs.runs:
      return None
    timelines = self._program.plan.timelines
    return step_passes.plan(timelines, secs=self._phase_secs["compute"])

  @property
  def can_go_on(self) -> bool:
    """Whether the rest of a step can run on the nodes that are left."""
    return not self.programs.runs or self.programs.can_run()

  def holdings(self) -> dict[int, holdings_lib.Holdings]:
    """See `step.Step`."""
    return (
        self.programs.holdings() if self.programs.runs else super().holdings()
    )

  def begin(
      self, step: int, feed: node_lib.FeedFn, due: faults_lib.FaultsDue
  ) -> None:
    """See `step.Step`."""
    super().begin(step, feed, due)
    self.programs.begin(step, feed)

  def plan(self, timelines: Sequence[timeline_lib.Timeline]) -> None:
    """See `step.Step`."""
    super().plan(timelines)
    if not self.programs.can_run():
      self._forget_programs()
      return
    for pipeline, timeline in enumerate(timelines):
      rows = {node: [] for node in self._engine.owners[pipeline]}
      for slot in timeline.slots:
        rows[slot.node].append(slot.instruction)
      self.programs.plan(rows, pipeline=pipeline)

  def _forget_programs(self) -> None:
    """Lets rows begin the step anew."""
    if self.programs.runs:
      self.programs.runs = {}
      for node in self._engine.nodes.values():
        node.store.clear()

  def compile(self, *, evaluate: bool) -> None:
    """See `step.Step`; compiles the programs too."""
    super().compile(evaluate=evaluate)
    if self.programs.can_run():
      self.programs.compile()

  def _compute(self) -> None:
    if not self.programs.runs:
      super()._compute()
      return
    while not self.programs.is_done:
      for run in self.programs.runs.values():
        for tick in run.segment:
          for node, own in zip(run.nodes, tick, strict=True):
            for _ in check.passes(own):
              self._strike(self._due.pop_at_instruction(node))
      self._cohort.check()
      self.programs.advance()
    self.programs.put_sums()


def make_step(
    job: job_lib.Job,
    *,
    cohort: cohort_lib.Cohort,
    director: cohort_lib.Director | None,
) -> step_lib.Step:
  """Returns the step of a job, by its executor."""
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
