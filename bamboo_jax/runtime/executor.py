"""Executors: how the passes of a step are run on the local nodes.

`RowsExecutor` runs the instructions of each node; `spmd.executor.Programs` runs
one program per pipeline. Both keep state and sums of gradients in the nodes of
an engine, so all later phases of a step are the same.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import jax

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import filler as filler_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.schedule import filling as filling_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.schedule import timeline as timeline_lib

T = TypeVar("T")


class TrainingView(Protocol):
  """The nodes that train together; see `cluster.views.View`."""

  @property
  def numbers(self) -> Collection[int]:
    """Numbers of its nodes."""


class Members(Protocol):
  """The members of a run; see `train.members.cohort.Cohort`."""

  @property
  def view(self) -> TrainingView:
    """The nodes that train."""

  @property
  def hosted(self) -> frozenset[int]:
    """The nodes that this member drives."""

  def host_of(self, node: int) -> int:
    """Returns the member that hosts a node."""

  def gather(self, key: str, value: T) -> dict[int, T]:
    """Returns the values of all members, by member; blocks."""

  def check(self) -> None:
    """Raises `base.ViewChangedError` if a node is lost."""


class Executor(Protocol):
  """Runs the passes of a step.

  Attributes:
    filler: Runs redundant forward passes in waits.
  """

  filler: filler_lib.Filler

  def jobs(self, lines: engine_lib.Lines) -> list[Callable[[], Any]]:
    """Returns jobs that compile this executor's programs for some lines.

    The programs of stages are not among them; see `phases.compile_ahead`.
    """

  def begin(self, step: int, feed: node_lib.FeedFn) -> None:
    """Drops all results of the previous step."""

  def plan(
      self,
      timelines: Sequence[timeline_lib.Timeline],
      filling: filling_lib.StepFilling | None = None,
  ) -> None:
    """Sets the passes to run, one timeline per pipeline.

    `filling` has the rules by which redundant passes fill the waits of a whole
    step; None if they do not. Executors of one program per pipeline ignore it.
    """

  def compute(
      self, strike: Callable[[int], None], recorder: recorder_lib.Recorder
  ) -> None:
    """Runs the planned passes.

    Calls `strike` with each local node before each of its instructions, and
    adds those that can be measured to `recorder`, which waits for them. Raises
    as `Members.check`, or the error of a transfer.
    """

  def holdings(self, *, is_begun: bool) -> dict[int, holdings_lib.Holdings]:
    """Returns the data of the step that local nodes hold, by node.

    All members call it at once in a new view. Empty if the next step to be
    committed has not begun here.
    """

  def can_continue(self) -> bool:
    """Returns whether `plan` accepts the rest of a step in the present roles.

    Otherwise the whole step must be planned again.
    """

  def planned_passes(self, secs: float) -> account_lib.NodeTime | None:
    """Returns the planned node time of a step of `secs`; None if measured."""


class Collectives(Protocol):
  """An executor's own transfers between processes, beside the transport."""

  def start(self, host: str) -> Mapping[int, jax.Device]:
    """Returns the device of the node of this process; call before JAX starts.

    This process listens on the numeric address `host`. Raises `ValueError` if
    the executor cannot run in several processes on these devices.
    """

  def begun(self) -> channel_lib.Begun:
    """Returns the transfers that have begun since all were settled."""

  def stop(self, view: int, *, alive: Collection[int] | None = None) -> None:
    """Prevents new transfers until `settled`.

    With `alive`, the members of `view`, transfers with other nodes fail.
    """

  def settle(
      self, begun: Mapping[int, channel_lib.Begun], *, view: int
  ) -> None:
    """Completes the transfers that have begun between live nodes; blocks.

    `begun` is by node of the view.
    """

  def settled(self, view: int, steps: int) -> None:
    """Allows transfers again; those of the first `steps` steps are over."""


class RowsExecutor:
  """Each node runs its own instructions, in the order of all rows."""

  def __init__(self, engine: engine_lib.Engine, members: Members) -> None:
    self.filler = filler_lib.Filler()
    self._engine, self._members = engine, members
    self._order: Sequence[tuple[int, instruction_lib.Instruction]] = ()

  def jobs(self, lines: engine_lib.Lines) -> list[Callable[[], Any]]:
    """See `Executor`; empty, as rows run only the programs of stages."""
    del lines
    return []

  def begin(self, step: int, feed: node_lib.FeedFn) -> None:
    """See `Executor`; results lie in the engine."""
    del step, feed

  def plan(
      self,
      timelines: Sequence[timeline_lib.Timeline],
      filling: filling_lib.StepFilling | None = None,
  ) -> None:
    """See `Executor`."""
    self._order = linearize.linearize(timelines)
    self.filler.plan(filling)

  def compute(
      self, strike: Callable[[int], None], recorder: recorder_lib.Recorder
  ) -> None:
    """See `Executor`."""
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

  def holdings(self, *, is_begun: bool) -> dict[int, holdings_lib.Holdings]:
    """See `Executor`."""
    nodes = self._engine.nodes.items() if is_begun else ()
    return {number: node.store.holdings() for number, node in nodes}

  def can_continue(self) -> bool:
    """See `Executor`."""
    return True

  def planned_passes(self, secs: float) -> account_lib.NodeTime | None:
    """See `Executor`."""
    del secs
    return None
