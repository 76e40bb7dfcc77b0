"""Runs redundant forward passes while a row waits for a value.

  row     F2   wait for a gradient               B0
  device  F2 | RF0        | RF1        |         B0
             ^ free         ^ no value: does one more fit? (schedule/filling)

A pass is started only when the device is free, because the value may arrive
before.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import time

from bamboo_jax import base
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.profile import recorder
from bamboo_jax.runtime.wire import links as links_lib
from bamboo_jax.schedule import filling as filling_lib
from bamboo_jax.schedule import instruction as instruction_lib

Instruction = instruction_lib.Instruction

# An instruction that was started, and its result.
Run = tuple[Instruction, base.PyTree]


class Filler:
  """Fills the waits of the node of a process, step after step.

  Attributes:
    stretch: How much longer than planned the rows of a step take.
  """

  def __init__(self) -> None:
    self.stretch = 1.0
    self._stretches = collections.deque[float](maxlen=filling_lib.NUM_STEPS)
    self._nodes: Mapping[int, node_lib.Node] = {}
    self._own: filling_lib.Filling | None = None
    self.plan(None)

  def plan(self, filling: filling_lib.StepFilling | None) -> None:
    """Sets the rules for the waits of the next rows; None: they stay empty."""
    self._filling = filling

  def begin(self, nodes: Mapping[int, node_lib.Node]) -> None:
    """Starts a step on local nodes; at most one if waits are to be filled."""
    self._nodes, self._own = nodes, None
    if self._filling is not None:
      for number in nodes:
        self._own = self._filling.nodes.get(number)  # A spare has none.
    self._start_secs = self._free_secs = time.perf_counter()
    self._done = set[Instruction]()

  def run(self, node: node_lib.Node, i: Instruction) -> Iterator[Run]:
    """Starts redundant passes that fit into a wait, then the instruction `i`.

    Yields each after its start; the caller then checks for a new view. Raises
    as `Node.run`.
    """
    if i.is_receive:
      yield from self._fill(node, i)
    yield self._run(node, i)

  def finish(self) -> Iterator[tuple[int, Instruction, base.PyTree]]:
    """Runs redundant passes in the time left in the step after its rows."""
    for number, node in self._nodes.items():
      for i, result in self._fill(node, None):
        yield number, i, result

  def ran(
      self, measured: Sequence[recorder.MeasuredInstruction]
  ) -> dict[int, filling_lib.Ran]:
    """Returns the times of local nodes' passes; {} if no waits are filled."""
    if self._filling is None:
      return {}
    return {
        node: filling_lib.Ran.of(
            (
                (m.instruction, m.start_secs, m.end_secs)
                for m in measured
                if m.node == node and not m.instruction.is_transfer
            ),
            since_secs=self._start_secs,
        )
        for node in self._nodes
    }

  def find_effect(
      self, ran: Mapping[int, filling_lib.Ran]
  ) -> filling_lib.Effect | None:
    """Returns cost and protection of the redundant passes in a step.

    `ran` has the times of all nodes. None if no wait could be filled, or a node
    died.
    """
    return self._filling.find_effect(ran) if self._filling else None

  def learn(self, stretch: float) -> None:
    """Learns from a step how much longer than planned its rows took."""
    self._stretches.append(stretch)
    self.stretch = filling_lib.find_stretch(self._stretches)

  @property
  def placed(self) -> filling_lib.Effect | None:
    """The predicted effect of the same passes, if they were placed ahead."""
    return self._filling.placed if self._filling else None

  def _fill(
      self, node: node_lib.Node, receive: Instruction | None
  ) -> Iterator[Run]:
    """Runs what fits before a receive, or without one at the end of the row."""
    if self._own is None:
      return
    link = None if receive is None else node.find_link(receive)
    if link is not None and not isinstance(link, links_lib.SocketLink):
      return  # The value comes from this process.
    activations = node.store.activations
    while i := self._own.find_next(self._done, activations):
      if link and not node.is_free and link.wait(self._left_secs(node)):
        return
      node.wait()
      if link and link.wait(0.0):
        return
      secs = (time.perf_counter() - self._start_secs) / self.stretch
      if not self._own.fits(i, receive, now_ms=1e3 * secs):
        return
      self._done.add(i)
      yield self._run(node, i)

  def _run(self, node: node_lib.Node, i: Instruction) -> Run:
    """Starts an instruction, and notes when the device should be free."""
    result = node.run(i)
    if self._own is not None and not i.is_transfer:
      start_secs = max(self._free_secs, time.perf_counter())
      secs = self.stretch * self._own.durations_ms[i] / 1e3
      self._free_secs = start_secs + secs
    return i, result

  def _left_secs(self, node: node_lib.Node) -> float:
    """Returns the expected time until the device is free."""
    now_secs, free_secs = time.perf_counter(), node.free_secs
    is_paced = free_secs > now_secs  # Then it is known.
    return (free_secs if is_paced else self._free_secs) - now_secs
