"""An executor whose passes are programs, one per pipeline.

A death costs the segment in which it happened. The results of earlier segments
are held by the survivors, so the rest of the step is planned as for rows and
runs as programs on the survivors. If nodes would share a device, which programs
cannot, rows repeat the step from its start.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

from absl import logging

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.runtime import engine as rows_engine, executor as executor_lib, node as node_lib
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.runtime.spmd import engine as engine_lib, plan as plan_lib
from bamboo_jax.runtime.spmd.ticks import check
from bamboo_jax.schedule import (
    holdings as holdings_lib,
    instruction as instruction_lib,
    redundancy,
    timeline as timeline_lib,
)


@dataclasses.dataclass(frozen=True)
class MemberProgress:
  """A member's progress in a step.

  Attributes:
    step: The step; -1 if the member has none that it can continue.
    done: See `engine.SpmdEngine.done`.
    by_rows: Whether the member runs this step by rows.
  """

  step: base.StepId = base.StepId(-1)
  done: engine_lib.Done = dataclasses.field(default_factory=dict)
  by_rows: bool = False


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
    self._step = base.StepId(-1)

  def jobs(self, lines: rows_engine.Lines) -> list[Callable[[], Any]]:
    """See `executor.Executor`."""
    return self.programs.jobs(lines)

  def begin(self, step: base.StepId, feed: node_lib.FeedFn) -> None:
    """See `executor.Executor`."""
    self.programs.begin(step, feed)
    self._step, self.is_by_rows = step, False

  def plan(
      self,
      timelines: Sequence[timeline_lib.Timeline],
      filling: redundancy.StepFilling | None = None,
  ) -> None:
    """See `executor.Executor`."""
    self._rows.plan(timelines, filling)
    if self.is_by_rows or not self.programs.can_run():
      self._give_up_programs()
      return
    for line, timeline in enumerate(timelines):
      rows: dict[base.NodeId, list[instruction_lib.Instruction]] = {
          node: [] for node in self._engine.lines[line][0]
      }
      for slot in timeline.slots:
        rows[slot.node].append(slot.instruction)
      self.programs.plan({n: tuple(row) for n, row in rows.items()}, line=line)

  def compute(self, strike: Callable[[base.NodeId], None], recorder: recorder_lib.Recorder) -> None:
    """See `executor.Executor`; the passes of programs cannot be measured."""
    if self.is_by_rows:
      self._rows.compute(strike, recorder)
      return
    while not self.programs.is_done:
      self._members.check()
      self.programs.start()
      for run in self.programs.running:
        for tick in run.segment:
          for node, own in zip(run.nodes, tick, strict=True):
            for _ in check.passes(own) if node in self._engine.nodes else ():
              strike(node)
      lost = self._engine.nodes.keys() - self._members.hosted
      self.programs.finish(lost)
    self.programs.put_sums()

  def holdings(self, *, is_begun: bool) -> dict[base.NodeId, holdings_lib.Holdings]:
    """See `executor.Executor`; rewinds to the last segment finished by all."""
    mine, members = MemberProgress(), self._members
    if is_begun:
      mine = MemberProgress(self._step, self.programs.done(), self.is_by_rows)
    said = members.gather("segments", mine)
    if not is_begun:
      return {}
    others = {m: p for m, p in said.items() if p.step == mine.step}
    if any(p.by_rows for p in others.values()):
      self._give_up_programs()
      return self._rows.holdings(is_begun=True)
    # A member that has not heard of the commit is a step behind.
    by_node = {n: others.get(members.host_of(n)) for n in members.view.numbers}
    self.programs.rewind({n: p.done if p else {} for n, p in by_node.items()})
    return self.programs.holdings()

  def can_continue(self) -> bool:
    """See `executor.Executor`."""
    return self.is_by_rows or self.programs.can_run()

  def planned_passes(self, secs: float) -> account_lib.NodeTime | None:
    """See `executor.Executor`; None if rows run the step."""
    if not self.programs.runs:
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
      self.is_by_rows, self.programs.runs = True, {}
      for node in self._engine.nodes.values():
        node.store.clear()
