"""The event loop that the simulators of two published artifacts share, and Bamboo's rules in it.

Bamboo (NSDI'23) was evaluated on simulated preemptions, and Oobleck (SOSP'23)
with a fork of that simulator: nodes are added, become ready after 45 s, train
in pipelines, and are removed. To be reassigned, nodes *gather*: the ready ones
are listed, a timer runs, and when it fires they get their places. `Rules`
handle losses and ends of steps; see also
`third_party/published/*_simulator.md`.

Unlike our simulator this does what the artifacts do, even where no real system
would, so that their tables can be separated from the effects of their inputs:
steps go on ending until the timer fires, so that a restart pauses nothing; and
a new gathering does not cancel older timers, of which the first that fires ends
it, and the next ones find an empty list and stop training. Steps between two
events are equal, and counted, not played.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import enum
import heapq
import math
from typing import Any, Protocol

CREATION_MS = 45_000
HOUR_MS = 3_600_000
GLOBAL_MS = 30_000
# If losing this share of the training nodes would be fatal, gather first.
_MAX_EXPOSED = 0.05

Row = tuple[int, bool, str]  # Time in ms, whether a node is added, its name.

# Kinds of events; of simultaneous ones the lower comes first.
_ADDITION, _REMOVAL, _MORE_ROWS, _READY = range(4)
_GLOBAL_TIMER, _LOCAL_TIMER, _STEP_END, _CHECKPOINT_END = range(4, 8)


class _Event(int):
  """An entry of the queue, ordered by time and kind only.

  The key is eight times the time in ms, plus the kind. The order of equal
  entries is that of `heapq`, as in the artifacts: it decides which nodes train
  together.
  """

  act: Callable[..., None]
  arguments: tuple[Any, ...]


class State(enum.Enum):
  """The state of the cluster."""

  STOPPED = enum.auto()
  GATHERING = enum.auto()
  RUNNING = enum.auto()


class Node:
  """A node, from its addition on."""

  __slots__ = ("is_live", "is_ready", "name")

  def __init__(self, name: str) -> None:
    self.name = name
    self.is_live = True
    self.is_ready = False


class Rules(Protocol):
  """The rules of a system; the loop calls each method at `loop.now_ms`.

  Attributes:
    timers_ms: How long nodes gather, by whether they do so globally.
  """

  num_stages: int
  timers_ms: Mapping[bool, int]

  def step_ms(self, num_pipelines: int, num_ready: int) -> int:
    """Returns the time of a step after a gathering."""

  def assign(self, nodes: Sequence[Node]) -> None:
    """Sets the training nodes from now on, in order of places.

    A place is the pipeline times stages plus the stage.
    """

  def lose(self, loop: "Loop", node: Node) -> None:
    """Handles the loss of a node, which may not be training."""

  def end_step(self, loop: "Loop") -> bool:
    """Ends a step; returns whether steps until the next event end equally."""


class Loop:
  """One run.

  Attributes:
    num_pipelines: Pipelines since the last timer.
    num_waiting: Number of waiting nodes by the artifacts' count: losses do not
      lower it before the next timer.
    step_ms: Time of the steps that start from now on.
    step_end_ms: End of the step in flight; None if there is none.
    interval_start_ms: End of the previous step, or first start of training.
    first_ms: First start of training; None before.
    inverse_nodes_sum: Sum over steps of the interval divided by its node time,
      that is of one over the mean number of live nodes.
    queued_ms: Sum of the times of all started steps.
    timer_sum_ms: Sums of all global timers, and of all local ones.
    num_events: Number of events, including steps that were not merely counted.
    queues_steps: Whether ends of steps are in the queue, as `scan` needs.
  """

  def __init__(
      self, rules: Rules, *, creation_ms: int = CREATION_MS, queues_steps: bool = False
  ) -> None:
    self._rules = rules
    self._creation_ms = creation_ms
    self.queues_steps = queues_steps
    self._queue: list[_Event] = []
    self._live: dict[str, Node] = {}  # In order of addition.
    self._gathered: list[Node] = []
    self._has_lost_gathered = False
    # Node time until a time at which the nodes of now live: their number times
    # that, plus this.
    self._node_ms_offset = 0
    self._node_ms_at_step = 0
    self._max_steps = math.inf
    self.now_ms = 0
    self.state = State.STOPPED
    self.num_pipelines = self.num_ready = self.num_waiting = 0
    self.step_ms = 0
    self.step_end_ms: int | None = None
    self.interval_start_ms = self._previous_end_ms = 0
    self.num_steps = 0
    self.first_ms: int | None = None
    self.last_ms = 0
    self.inverse_nodes_sum = 0.0
    self.queued_ms = 0
    self.timer_sum_ms = {True: 0, False: 0}
    self.num_removals = self.num_events = 0

  def run(
      self,
      rows: Sequence[Row],
      *,
      more_rows: Iterator[Sequence[Row]] | None = None,
      end_ms: float = math.inf,
      num_steps: float = math.inf,
  ) -> None:
    """Runs until a time after which nothing happens, or for some steps.

    `more_rows` yields each hour after the first, endlessly; without it `end_ms`
    is finite.
    """
    assert more_rows is not None or end_ms < math.inf
    self._max_steps = num_steps
    self._push_rows(rows)
    heapq.heapify(self._queue)  # Changes the order of equal entries.
    if more_rows is not None:
      self._push(HOUR_MS, _MORE_ROWS, self._begin_hour, more_rows)
    heap = self._queue
    while self.num_steps < num_steps:
      until_ms = heap[0] >> 3 if heap else end_ms
      if until_ms > end_ms:
        until_ms = end_ms
      if self.step_end_ms is not None and self.step_end_ms < until_ms:
        self._end_steps(until_ms)
        continue
      if until_ms == end_ms:
        break
      event = heapq.heappop(heap)
      self.now_ms = until_ms
      self.num_events += 1
      event.act(*event.arguments)

  def start_step(self, start_ms: int) -> None:
    self.step_end_ms = start_ms + self.step_ms
    self.queued_ms += self.step_ms
    if self.queues_steps:
      self._push(self.step_end_ms, _STEP_END, self._end_queued_step)

  def complete_step(self) -> None:
    """Counts the step that ends now; none is in flight afterwards."""
    now_ms = self.now_ms
    node_ms = len(self._live) * now_ms + self._node_ms_offset
    step_node_ms = node_ms - self._node_ms_at_step
    if step_node_ms:  # Otherwise it ended without a live node.
      interval_ms = now_ms - self._previous_end_ms
      self.inverse_nodes_sum += interval_ms / step_node_ms
    self.num_steps += 1
    self.last_ms = self.interval_start_ms = self._previous_end_ms = now_ms
    self._node_ms_at_step = node_ms
    self.step_end_ms = None

  def gather(self, *, is_global: bool) -> None:
    """Lists the nodes that are ready, and sets a timer."""
    self.state = State.GATHERING
    self._gathered = [node for node in self._live.values() if node.is_ready]
    self._has_lost_gathered = False
    delay_ms = self._rules.timers_ms[is_global]
    self.timer_sum_ms[is_global] += delay_ms
    kind = _GLOBAL_TIMER if is_global else _LOCAL_TIMER
    self._push(self.now_ms + delay_ms, kind, self._fire, is_global)

  def scan(self, end_ms: int) -> bool:
    """Queues the end of a checkpoint; returns whether a loss precedes one.

    As in the artifact, by the order of the heap's array and not of time.
    """
    self._push(end_ms, _CHECKPOINT_END, lambda: None)
    heapq.heapify(self._queue)
    for event in self._queue:
      if event & 7 in (_REMOVAL, _CHECKPOINT_END):
        return event & 7 == _REMOVAL
    return False

  def average_nodes(self) -> float:
    """Returns the mean number of live nodes until the last step's end."""
    return self._node_ms_until(self.last_ms) / max(1, self.last_ms)

  def _push(self, at_ms: int, kind: int, act: Callable[..., None], *arguments: Any) -> None:
    event = _Event(8 * at_ms + kind)
    event.act, event.arguments = act, arguments
    heapq.heappush(self._queue, event)

  def _push_rows(self, rows: Sequence[Row]) -> None:
    for time_ms, is_added, name in rows:
      kind, act = (_ADDITION, self._add) if is_added else (_REMOVAL, self._remove)
      self._push(time_ms, kind, act, name)

  def _begin_hour(self, more_rows: Iterator[Sequence[Row]]) -> None:
    self._push_rows(next(more_rows))
    self._push(self.now_ms + HOUR_MS, _MORE_ROWS, self._begin_hour, more_rows)

  def _node_ms_until(self, time_ms: int) -> int:
    return len(self._live) * time_ms + self._node_ms_offset

  def _add(self, name: str) -> None:
    self._node_ms_offset -= self.now_ms
    node = self._live[name] = Node(name)
    ready_ms = self.now_ms + self._creation_ms
    self._push(ready_ms, _READY, self._make_ready, node)

  def _remove(self, name: str) -> None:
    self._node_ms_offset += self.now_ms
    node = self._live.pop(name)
    node.is_live = False
    if node.is_ready:
      self.num_ready -= 1
      # Nodes that become ready while others gather are listed too.
      self._has_lost_gathered = bool(self._gathered)
    self.num_removals += 1
    self._rules.lose(self, node)

  def _make_ready(self, node: Node) -> None:
    if not node.is_live:
      return
    node.is_ready = True
    self.num_ready += 1
    if self.state is State.STOPPED:
      self.gather(is_global=True)
    elif self.state is State.GATHERING:
      self._gathered.append(node)
    else:
      self.num_waiting += 1

  def _fire(self, is_global: bool) -> None:
    if self._has_lost_gathered:
      self.gather(is_global=is_global)
      return
    nodes, self._gathered = self._gathered, []
    self.num_pipelines = len(nodes) // self._rules.num_stages
    num_places = self.num_pipelines * self._rules.num_stages
    self.num_waiting = len(nodes) - num_places
    self.step_end_ms = None
    if nodes:  # Otherwise, after a stale timer, they keep their places.
      self._rules.assign(nodes[:num_places])
    if not self.num_pipelines:
      self.state = State.STOPPED
      return
    self.state = State.RUNNING
    self.step_ms = self._rules.step_ms(self.num_pipelines, self.num_ready)
    if self.first_ms is None:
      self.first_ms = self.interval_start_ms = self.now_ms
      self._previous_end_ms = self.now_ms
      self._node_ms_at_step = self._node_ms_until(self.now_ms)
    self.start_step(self.now_ms)

  def _end_queued_step(self) -> None:
    if self.now_ms == self.step_end_ms:  # Otherwise it was abandoned.
      self._end_steps(self.now_ms)

  def _end_steps(self, until_ms: float) -> None:
    """Ends the step in flight, and equal ones that end before a time."""
    self.now_ms = self.step_end_ms
    self.num_events += 1
    if not self._rules.end_step(self) or self.step_end_ms >= until_ms:
      return
    step_ms, num_live = self.step_ms, len(self._live)
    count = (until_ms - 1 - self.step_end_ms) // step_ms + 1
    if count > self._max_steps - self.num_steps:
      count = self._max_steps - self.num_steps
    self.num_steps += count
    self.inverse_nodes_sum += count / (num_live or 1)
    self.queued_ms += count * step_ms
    self.step_end_ms += count * step_ms
    end_ms = self.step_end_ms - step_ms
    self.last_ms = self.interval_start_ms = self._previous_end_ms = end_ms
    self._node_ms_at_step = num_live * end_ms + self._node_ms_offset


class BambooRules:
  """The rules of Bamboo in both artifacts.

  A lost node is replaced by the node of the previous stage, its shadow: the rest
  of the step in flight takes half as long again, and later steps take one and a
  half times as long. A node that covers two stages cannot be lost, nor cover a
  third one: then all nodes gather again, globally, as at the start; at the end of
  a step they gather locally.

  Attributes:
    num_fatal: Losses after which all nodes had to gather.
    lost_ms: Sum over losses of the step time at the loss.
  """

  def __init__(
      self,
      *,
      num_stages: int,
      step_ms: Callable[[int, int], int],
      local_ms: int,
      global_ms: int = GLOBAL_MS,
  ) -> None:
    self.num_stages = num_stages
    self.num_fatal = 0
    self.lost_ms = 0
    self.step_ms = step_ms
    self.timers_ms = {True: global_ms, False: local_ms}
    self._holders: list[Node] = []  # By place.
    self._num_doubled = 0  # Live nodes that cover two stages.
    self._is_slowed = False
    self._prolong_since_ms: int | None = None

  def assign(self, nodes: Sequence[Node]) -> None:
    """Sets the training nodes: every node covers only its own stage."""
    self._holders = list(nodes)
    self._num_doubled = 0
    self._is_slowed = False
    self._prolong_since_ms = None

  def lose(self, loop: Loop, node: Node) -> None:
    """Lets the shadow take over, or all nodes gather."""
    self.lost_ms += loop.step_ms
    if node in self._holders and self._is_fatal(node):
      self.num_fatal += 1
      loop.gather(is_global=True)
    elif loop.state is State.RUNNING and not self._is_slowed:
      self._is_slowed = True
      self._prolong_since_ms = loop.now_ms
      loop.step_ms = loop.step_ms * 3 // 2

  def end_step(self, loop: Loop) -> bool:
    """Ends the step, unless a loss prolongs it; gathers if necessary."""
    if self._prolong_since_ms is not None:
      loop.step_end_ms += (loop.now_ms - self._prolong_since_ms) // 2
      self._prolong_since_ms = None
      return False
    loop.complete_step()
    if self._should_gather(loop):
      loop.gather(is_global=False)
      return False
    loop.start_step(loop.now_ms)
    return True

  def _is_fatal(self, node: Node) -> bool:
    """Returns whether no node can cover for a node, as its shadow would."""
    if self._holders.count(node) > 1:
      self._num_doubled -= 1
      return True
    place = self._holders.index(node)
    first = place - place % self.num_stages
    shadow = self._holders[first + (place - first - 1) % self.num_stages]
    if not shadow.is_live:
      return False  # As in the artifacts, no node covers the stage.
    if self._holders.count(shadow) > 1:
      return True
    self._holders[place] = shadow
    self._num_doubled += 1
    return False

  def _should_gather(self, loop: Loop) -> bool:
    """Returns whether usable nodes wait, or a fatal loss is too likely."""
    doubled, waiting = self._num_doubled, loop.num_waiting
    training = loop.num_pipelines * self.num_stages - doubled
    if doubled and (waiting >= doubled or 2 * doubled > _MAX_EXPOSED * training):
      return True
    return (training + waiting) // self.num_stages > loop.num_pipelines
