"""Executors: how the passes of a step are run on the local nodes.

`Executor` runs the instructions of each node; `spmd.executor.Programs`, which has the
same methods, runs one program per pipeline. Both keep state and sums of gradients in the nodes of
an engine, so all later phases of a step are the same.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import time
from typing import Any, Protocol

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.runtime import engine as engine_lib, node as node_lib
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import (
    holdings as holdings_lib,
    instruction as instruction_lib,
    redundancy,
    rule as rule_lib,
    timeline as timeline_lib,
)

NodeId = base.NodeId
Instruction = instruction_lib.Instruction

# An instruction that was started, and its result.
_Started = tuple[Instruction, base.PyTree]


class Members(Protocol):
  """The members of a run; see `training.cohort.Cohort`."""

  @property
  def hosted(self) -> frozenset[NodeId]:
    """The nodes that this member drives."""

  def check(self) -> None:
    """Raises `base.ViewChangedError` if a node is lost."""


class Filler:
  """Runs redundant forward passes while the row of a process waits for a value.

  row     F2   wait for a gradient               B0
  device  F2 | RF0        | RF1        |         B0
             ^ free         ^ no value: does one more fit? (schedule/rule)

  A pass is started only when the device is free, because the value may arrive
  before.

  Attributes:
    filling: Rules for the waits of the next rows; None: they stay empty.
    stretch: How much longer than planned the rows of a step take.
  """

  def __init__(self) -> None:
    self.stretch = 1.0
    self._stretches = collections.deque[float](maxlen=redundancy.NUM_STEPS)
    self._nodes: Mapping[NodeId, node_lib.Node] = {}
    self._own: rule_lib.WaitRule | None = None
    self.filling: redundancy.StepFilling | None = None

  def begin(self, nodes: Mapping[NodeId, node_lib.Node]) -> None:
    """Starts a step on local nodes; at most one if waits are to be filled."""
    self._nodes, self._own = nodes, None
    if self.filling is not None:
      for number in nodes:
        self._own = self.filling.rules.get(number)  # A spare has none.
    self._start_secs = self._free_secs = time.perf_counter()
    self._done = set[Instruction]()

  def run(self, node: node_lib.Node, i: Instruction) -> Iterator[_Started]:
    """Starts redundant passes that fit into a wait, then the instruction `i`.

    Yields each after its start; the caller then checks for a new view. Raises
    as `Node.run`.
    """
    if i.is_receive:
      yield from self._fill(node, i)
    yield self._run(node, i)

  def finish(self) -> Iterator[tuple[NodeId, Instruction, base.PyTree]]:
    """Runs redundant passes in the time left in the step after its rows."""
    for number, node in self._nodes.items():
      for i, result in self._fill(node, None):
        yield number, i, result

  def ran(
      self, measured: Sequence[recorder_lib.MeasuredInstruction]
  ) -> dict[NodeId, redundancy.Ran]:
    """Returns the times of local nodes' passes; {} if no waits are filled."""
    if self.filling is None:
      return {}
    return {
        node: redundancy.Ran.of(
            (
                (m.instruction, m.start_secs, m.end_secs)
                for m in measured
                if m.node == node and not m.instruction.is_transfer
            ),
            since_secs=self._start_secs,
        )
        for node in self._nodes
    }

  def learn(self, stretch: float) -> None:
    """Learns from a step how much longer than planned its rows took."""
    self._stretches.append(stretch)
    self.stretch = redundancy.find_stretch(self._stretches)

  def _fill(self, node: node_lib.Node, receive: Instruction | None) -> Iterator[_Started]:
    """Runs what fits before a receive, or without one at the end of the row."""
    if self._own is None:
      return
    has_come = lambda secs: False
    if receive is not None:
      channel = node.find_channel(receive)
      if (exchange := node.links.find_remote(channel)) is None:
        return  # The value comes from this process.
      has_come = functools.partial(exchange.wait, channel.nodes[0], str(channel))
    while i := self._own.find_next(self._done, node.store.activations):
      if not node.is_free:  # When it will be is known if it is paced.
        now_secs, free_secs = time.perf_counter(), node.free_secs
        free_secs = free_secs if free_secs > now_secs else self._free_secs
        if has_come(free_secs - now_secs):
          return
      node.wait()
      if has_come(0.0):
        return
      secs = (time.perf_counter() - self._start_secs) / self.stretch
      if not self._own.fits(i, receive, now_ms=1e3 * secs):
        return
      self._done.add(i)
      yield self._run(node, i)

  def _run(self, node: node_lib.Node, i: Instruction) -> _Started:
    """Starts an instruction, and notes when the device should be free."""
    result = node.run(i)
    if self._own is not None and not i.is_transfer:
      start_secs = max(self._free_secs, time.perf_counter())
      secs = self.stretch * self._own.pass_ms(i) / 1e3
      self._free_secs = start_secs + secs
    return i, result


class Executor:
  """Runs the passes of a step: each node its own instructions, in the order of all rows.

  Attributes:
    filler: Runs redundant forward passes in waits.
    in_segments: Passes of local nodes in this step that were run in a segment of a
      program, with the times of the segment.
  """

  in_segments: Sequence[recorder_lib.MeasuredInstruction] = ()

  def __init__(self, engine: engine_lib.Engine, members: Members) -> None:
    self.filler = Filler()
    self._engine, self._members = engine, members
    self._timelines: Sequence[timeline_lib.Timeline] = ()
    self._order: Sequence[tuple[NodeId, Instruction]] = ()

  def jobs(self, lines: engine_lib.Lines) -> list[Callable[[], Any]]:
    """Returns jobs that compile this executor's programs for some lines.

    For the present ones, also those after each death that replicas survive. The
    programs of units, which are all that rows run, are not among them; see
    `phases.compile_ahead`.
    """
    del lines
    return []

  def begin(self, step: base.StepId, feed: node_lib.FeedFn) -> None:
    """Drops all results of the previous step; those of rows lie in the nodes."""
    del step, feed

  def plan(
      self,
      timelines: Sequence[timeline_lib.Timeline],
      filling: redundancy.StepFilling | None = None,
  ) -> None:
    """Sets the passes to run, one timeline per pipeline.

    `filling` has the rules by which redundant passes fill the waits of a whole
    step; None if they do not. Executors of one program per pipeline ignore it.
    """
    if timelines is not self._timelines:  # Most steps have those of the last.
      self._timelines = timelines
      self._order = timeline_lib.linearize(timelines)
    self.filler.filling = filling

  def compute(self, strike: Callable[[NodeId], None], recorder: recorder_lib.Recorder) -> None:
    """Runs the planned passes.

    Calls `strike` with each local node before each of its instructions, and
    adds those that can be measured to `recorder`, which waits for them. Raises
    as `Members.check`, or the error of a transfer.
    """
    nodes, check = self._engine.nodes, self._members.check
    self._engine.clock.catch_up()
    self.filler.begin(nodes)
    for node, instruction in self._order:
      if node in nodes:  # Otherwise another process runs it.
        strike(node)
        check()
        for run in self.filler.run(nodes[node], instruction):
          recorder.add(node, *run)
          check()
    for run in self.filler.finish():
      recorder.add(*run)
      check()

  def holdings(self, *, is_begun: bool) -> dict[NodeId, holdings_lib.Holdings]:
    """Returns the data of the step that local nodes hold, by node.

    All members call it at once in a new view. Empty if the next step to be
    committed has not begun here.
    """
    nodes = self._engine.nodes.items() if is_begun else ()
    return {number: node.store.holdings() for number, node in nodes}

  def can_continue(self) -> bool:
    """Returns whether `plan` accepts the rest of a step in the present roles.

    Otherwise the whole step must be planned again.
    """
    return True

  def planned_passes(self, secs: float) -> account_lib.NodeTime | None:
    """Returns the planned node time of a step of `secs`; None if measured."""
    del secs
    return None
