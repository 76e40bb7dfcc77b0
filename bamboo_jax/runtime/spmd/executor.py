"""An executor whose passes are programs, one per pipeline.

A death costs the segment in which it happened: the survivors hold the results
of earlier segments, so the rest of the step is planned as for rows and runs as
programs on the survivors. If programs cannot run the new roles, because nodes
would share a device, rows repeat the step from its start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.runtime import engine as rows_engine, executor as executor_lib, node as node_lib
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.runtime.spmd import engine as engine_lib, plan as plan_lib
from bamboo_jax.schedule import holdings as holdings_lib, redundancy, timeline as timeline_lib


class Programs:
  """See `executor.Executor`.

  Attributes:
    filler: The filler of rows; programs fill no waits.
    plan_of_step: Ticks and times of a step.
    programs: The engine that runs the passes.
    is_by_rows: Whether rows run the passes of this step instead.
  """

  def __init__(
      self,
      plan_of_step: plan_lib.ProgramPlan,
      programs: engine_lib.SpmdEngine,
      engine: rows_engine.Engine,
      members: executor_lib.Members,
  ) -> None:
    self.plan_of_step, self.programs = plan_of_step, programs
    self.is_by_rows = False
    self._engine, self._members = engine, members
    self._rows = executor_lib.RowsExecutor(engine, members)
    self.filler = self._rows.filler

  def jobs(self, lines: rows_engine.Lines) -> list[Callable[[], Any]]:
    engine, jobs = self._engine, self.programs.jobs(lines)
    if lines is engine.lines:
      for owners in survivable_deaths(engine.owners, engine.shadows):
        after = [(row, own) for row, own in zip(owners, engine.shares, strict=True) if own]
        jobs += self.programs.jobs(after)
    return jobs

  def begin(self, step: base.StepId, feed: node_lib.FeedFn) -> None:
    self.programs.begin(step, feed)
    self.is_by_rows = False

  def plan(
      self,
      timelines: Sequence[timeline_lib.Timeline],
      filling: redundancy.StepFilling | None = None,
  ) -> None:
    self._rows.plan(timelines, filling)
    if self.programs.uses_processes:  # What they have done is in the stores.
      self.programs.forget()
    if self.is_by_rows or not self.programs.can_run():
      self._give_up_programs()
      return
    for line, timeline in enumerate(timelines):
      self.programs.plan([(s.node, s.instruction) for s in timeline.slots], line=line)

  def compute(self, strike: Callable[[base.NodeId], None], recorder: recorder_lib.Recorder) -> None:
    """See `executor.Executor`; the passes of programs cannot be measured."""
    if self.is_by_rows:
      self._rows.compute(strike, recorder)
      return
    nodes, members = self._engine.nodes, self._members

    def strike_at(owners: Sequence[base.NodeId], segment: Sequence[Sequence[Any]]) -> None:
      for tick in segment:
        for node, own in zip(owners, tick, strict=True):
          for _ in own.passes if node in nodes else ():
            strike(node)

    if self.programs.uses_processes:
      self.programs.run_in_children(strike_at, members.check)
    while not self.programs.is_done:
      members.check()
      self.programs.start()
      for run in self.programs.running:
        strike_at(run.nodes, run.segment)
      self.programs.finish(nodes.keys() - members.hosted)
    self.programs.put_sums()

  def holdings(self, *, is_begun: bool) -> dict[base.NodeId, holdings_lib.Holdings]:
    if is_begun and not self.is_by_rows:
      self.programs.dump()
    return self._rows.holdings(is_begun=is_begun)

  def can_continue(self) -> bool:
    return self.is_by_rows or self.programs.can_run()

  def planned_passes(self, secs: float) -> account_lib.NodeTime | None:
    """See `executor.Executor`; None if rows run the step."""
    if self.is_by_rows:
      return None
    owners = {node for row, _ in self._engine.lines for node in row}
    part = len(owners & self._engine.nodes.keys()) / len(owners)
    return self.plan_of_step.passes(secs) * part

  def _give_up_programs(self) -> None:
    """Makes rows repeat the step from its start, unless they run it already."""
    if not self.is_by_rows:
      logging.warning(
          "Rows run this step: programs cannot, because nodes would share a "
          "device or send to nodes other than their neighbours. The last bits "
          "of its results may differ from those of programs."
      )
      self.is_by_rows = True
      self.programs.forget()
      for node in self._engine.nodes.values():
        node.store.clear()


def survivable_deaths(
    owners: Sequence[Sequence[base.NodeId]], shadows: Sequence[Mapping[base.StageId, base.NodeId]]
) -> Iterator[list[tuple[base.NodeId, ...]]]:
  """Yields the owners after the death of each node that has shadows."""
  for pipeline, holders in enumerate(shadows):
    row = owners[pipeline]
    for victim in sorted({row[stage] for stage in holders}):
      after = [tuple(r) for r in owners]
      after[pipeline] = tuple(
          holders.get(stage, node) if node == victim else node for stage, node in base.by_stage(row)
      )
      yield after
