"""Plays a trace against a policy, event by event.

Events are those of the trace, nodes that become ready, ends of pauses, and ends
of steps for which a change waits; `books` accounts for the time between. At
equal times losses come first, then nodes that become ready, then ends of pauses
and steps.

Decisions are those of `recovery.decide`, as in a real run. They depend on places, not on
the names of nodes. So nodes are numbered by their places, pipeline by pipeline and then the
spares, and answers are cached by these numbers. Only a restart depends on the zones of
nodes: it is asked about each time.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import heapq
from typing import Any, NamedTuple

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib, prices as prices_lib
from bamboo_jax.recovery import decide, layout as layout_lib, planner as planner_lib
from bamboo_jax.sim import books as books_lib, times as times_lib
from bamboo_jax.traces import trace as trace_lib

# Order of simultaneous events.
_TRACE, _READY, _WAKE = range(3)


# A node is the event of its arrival: one that returns under the same name is another one.
Nodes = Iterable[trace_lib.Event]


class News(NamedTuple):
  """The nodes that joined, left, or got a preemption notice at an instant."""

  added: Nodes = ()
  lost: Nodes = ()
  noticed: Nodes = ()


class NodeRoster:
  """Nodes by name and by place; booting nodes have no place yet."""

  def __init__(self) -> None:
    self._live: dict[str, trace_lib.Event] = {}
    self._noticed: set[trace_lib.Event] = set()
    self._places: list[trace_lib.Event] = []

  @property
  def num_live(self) -> int:
    return len(self._live)

  def follow(self, events: Nodes) -> News:
    """Applies the events of an instant."""
    added, lost, noticed = [], [], []
    for event in events:
      if event.kind == "add":
        self._live[event.node] = event
        added.append(event)
      elif event.kind == "remove":
        lost.append(self._live.pop(event.node))
      else:
        noticed.append(self._live[event.node])
        self._noticed.add(noticed[-1])
    return News([*filter(self._is_live, added)], lost, noticed)

  def welcome(self, nodes: Nodes) -> News:
    """Returns that nodes have booted, and what was announced of them meanwhile."""
    return News(nodes, noticed=[node for node in nodes if node in self._noticed])

  def seat(self, nodes: Nodes) -> tuple[base.NodeId, ...]:
    """Gives the next places to the nodes that are still alive; returns them."""
    first = len(self._places)
    self._places += filter(self._is_live, nodes)
    return tuple(base.nodes(first, len(self._places)))

  def find(self, nodes: Nodes) -> frozenset[base.NodeId]:
    """Returns the places of the nodes that have one."""
    places = self._places
    found = [places.index(node) for node in nodes if node in places]
    return frozenset(map(base.NodeId, found))

  def rearrange(self, numbers: Sequence[base.NodeId]) -> None:
    """Permutes the places: place i gets the node of place `numbers[i]`."""
    self._places = [self._places[number] for number in numbers]

  def zones(self) -> Mapping[base.NodeId, str]:
    return {i: node.zone for i, node in base.by_node(self._places)}

  def names(self, places: Iterable[base.NodeId]) -> tuple[str, ...]:
    return tuple(self._places[place].node for place in places)

  def _is_live(self, node: trace_lib.Event) -> bool:
    return self._live.get(node.node) is node


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
  """A layout whose nodes are numbered by their places.

  Attributes:
    num_owners: Places below this one are of pipelines, the rest of spares. The
      dead owner of a vacant stage keeps its place.
    num_training: Nodes that have a stage.
  """

  layout: layout_lib.Layout
  num_places: int
  num_owners: int
  num_training: int
  times: times_lib.PipelineTimes

  @functools.cached_property
  def cost(self) -> times_lib.StepCost:
    """The cost of a step; there must be pipelines."""
    return self.times.cost(self.layout.pipelines)


@dataclasses.dataclass(frozen=True)
class PlacedDecision:
  """A decision, with the places and the delay that follow.

  Attributes:
    decision: In the numbers of the question: places, then the joining nodes.
      Its pipelines may have other nodes, see `numbers`.
    places: The places from now on.
    numbers: For each place, the number of its node in the question.
    delay: Delay of the step in flight, or the pause between two steps; the time
      to detect a loss is added to it.
  """

  decision: decide.Decision
  places: Places
  numbers: tuple[base.NodeId, ...]
  delay: times_lib.Delay


# Places, and for each the number that its node had before.
Numbered = tuple[Places, tuple[base.NodeId, ...]]


class Policy:
  """The rules of a simulated cluster; `empty` are places of no node.

  `market` selects the price, "spot" or "on_demand". On demand, nodes stay: the
  maximum number of live nodes of the trace is there from the start.
  """

  MAX_ANSWERS = 20_000  # The cache is cleared at this size.

  def __init__(
      self,
      name: str,
      ladder: decide.Ladder,
      planner: planner_lib.Planner,
      times: times_lib.PipelineTimes,
      *,
      market: str = "spot",
      heeds_zones: bool = True,
  ) -> None:
    self.name, self.market, self._heeds = name, market, heeds_zones
    self.ladder, self.planner, self.times = ladder, planner, times
    self._places: dict[tuple[Any, ...], Places] = {}
    self._answers: dict[tuple[Any, ...], PlacedDecision] = {}
    self.empty, _ = self._find_places(layout_lib.Layout())

  def answer(
      self,
      places: Places,
      change: decide.Change,
      *,
      when: str,
      find_zones: Callable[[], Mapping[base.NodeId, str]],
  ) -> PlacedDecision:
    """Returns the answer to a change.

    Args:
      places: `empty`, or from another answer.
      change: Nodes by number; joining nodes have the next numbers.
      find_zones: Returns the zone of all nodes by number, joining ones
        included. Called only if it matters.
    """
    key = places, change.lost, len(change.joined), change.noticed, when
    answer = self._answers.get(key)
    if answer is None:
      if len(self._answers) >= self.MAX_ANSWERS:
        self._answers.clear()
        self._places.clear()
      answer = self._answers[key] = self._ask(places.layout, change, when)
    if answer.decision.rung == "checkpoint" and self._heeds:
      return self._ask(places.layout, dataclasses.replace(change, zones=find_zones()), when)
    return answer

  def disband(self, places: Places) -> Numbered:
    """Returns places without pipelines, where all nodes are spares."""
    before = places.layout
    return self._find_places(layout_lib.Layout(spares=before.live, leaving=before.leaving))

  def _ask(self, layout: layout_lib.Layout, change: decide.Change, when: str) -> PlacedDecision:
    decision = decide.decide(layout, change, ladder=self.ladder, planner=self.planner, when=when)
    delay = self.times.delay(decision, layout.pipelines, when=when)
    return PlacedDecision(decision, *self._find_places(decision.layout), delay)

  def _find_places(self, layout: layout_lib.Layout) -> Numbered:
    owners = {n: None for p in layout.pipelines for n in p.roles.owners}
    # A node that has handed a stage over is a spare, in a vacant place.
    numbers = tuple({**owners, **dict.fromkeys(layout.spares)})
    number = {node: i for i, node in base.by_node(numbers)}
    leaving = frozenset(number[n] for n in layout.leaving if n in number)
    shapes = tuple(p.shape for p in layout.pipelines)
    spares = tuple(number[n] for n in layout.spares)
    key = shapes, spares, leaving
    if key not in self._places:
      pipelines = tuple(p.renumbered(number) for p in layout.pipelines)
      self._places[key] = Places(
          layout=layout_lib.Layout(pipelines, spares=spares, leaving=leaving),
          num_places=len(numbers),
          num_owners=len(owners),
          num_training=sum(len(p.nodes) for p in pipelines),
          times=self.times,
      )
    return self._places[key], numbers


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
  """The state of a run from one moment on.

  Attributes:
    num_nodes: Live nodes.
    rung: Rung that was taken then, "none" if none; `text` gives the reason.
    owners: For each pipeline, the node that owns each stage; of a vacant stage
      the last one.
  """

  secs: float
  samples_per_sec: float
  num_nodes: int
  rung: str
  text: str
  owners: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The results of a run.

  Attributes:
    num_steps: Steps trained and not rolled back.
    num_dropped: Samples that were dropped from them.
    rungs: How often each rung was taken, except "none".
    moments: The course of the run, if requested.
  """

  policy: str
  account: account_lib.Account
  num_steps: int
  num_dropped: float
  num_events: int
  num_rollbacks: int
  rungs: dict[str, int]
  moments: tuple[Moment, ...]

  @property
  def dropped_share(self) -> float:
    total = self.account.num_samples + self.num_dropped
    return self.num_dropped / total if total else 0.0


def simulate(
    trace: trace_lib.Trace, policy: Policy, price: prices_lib.Price, *, keep_moments: bool = False
) -> Outcome:
  """Returns the outcome of `policy` on `trace`.

  If the trace has prices, their mean is paid on the spot market.

  Raises:
    base.InfeasibleError: There are never enough nodes for the policy.
    ValueError: A throughput table lacks a number of nodes; a zone has no price, or the mean
      is above the price on demand.
  """
  try:
    policy.planner.partitions(trace.num_nodes)
  except base.InfeasibleError as error:
    raise base.InfeasibleError(
        f"Policy {policy.name!r} cannot start on trace {trace.name!r}, which "
        f"has at most {trace.num_nodes} nodes: {error}"
    ) from error
  if (usd_per_hour := trace_lib.mean_usd_per_hour(trace)) is not None:
    source = f"mean of trace {trace.name}"
    price = dataclasses.replace(
        price, spot_usd_per_hour=usd_per_hour, source=source, date="undated"
    )
  if policy.market == "on_demand":
    names = [f"node{i}" for i in range(trace.num_nodes)]
    stay = tuple(trace_lib.Event(0, "add", name) for name in names)
    trace = dataclasses.replace(trace, events=stay)
  return _Run(trace, policy, price, keep_moments=keep_moments).play()


class _Run:

  def __init__(
      self, trace: trace_lib.Trace, policy: Policy, price: prices_lib.Price, *, keep_moments: bool
  ) -> None:
    self._policy = policy
    self._end_secs = trace.duration_ms / 1e3
    self._price = price
    durations = policy.times.durations
    if not policy.ladder.options.checkpoint:
      durations = dataclasses.replace(durations, save_every_secs=0.0)
    self._books = books_lib.Books(durations)
    self._places = policy.empty
    self._roster = NodeRoster()
    self._heap: list[tuple[float, int, int, Any]] = [
        (time_ms / 1e3, _TRACE, i, events) for i, (time_ms, events) in enumerate(trace.instants())
    ]
    self._num_pushed = len(self._heap)
    self._wake_at: float | None = None
    self._mode = "idle"  # "run", "pause", "restart"; "idle" without pipelines.
    self._must_look = False  # Whether a change waits for the end of the step.
    self._keep_moments = keep_moments
    self._moments: list[Moment] = []
    self._num_rollbacks = 0
    self._rungs: collections.Counter[str] = collections.Counter()

  def play(self) -> Outcome:
    num_events, heap, end_secs = 0, self._heap, self._end_secs
    while heap and heap[0][0] < end_secs:
      now, kind, _, what = heapq.heappop(heap)
      if kind == _WAKE and now != self._wake_at:
        continue  # Replaced by a later end.
      num_events += 1
      self._books.advance(now)
      if kind == _TRACE:
        news = self._roster.follow(what)
        if news.added and (boot_secs := self._policy.times.durations.boot_secs):
          self._push(now + boot_secs, _READY, news.added)
          news = news._replace(added=())
        self._change(now, news)
      elif kind == _READY:
        self._change(now, self._roster.welcome(what))
      elif self._must_look and not self._books.elapsed_secs:
        self._wake_at, self._must_look, self._mode = None, False, "run"
        self._decide(now, decide.NOTHING, when="boundary")
      else:
        self._wake_at = None
        self._train(now)
        self._note(now, "none", "training goes on")
    self._books.advance(end_secs)
    return Outcome(
        policy=self._policy.name,
        account=self._books.totals.charge(self._price, market=self._policy.market),
        num_steps=self._books.num_steps,
        num_dropped=self._books.num_dropped,
        num_events=num_events,
        num_rollbacks=self._num_rollbacks,
        rungs=dict(self._rungs),
        moments=tuple(self._moments),
    )

  def _push(self, at_secs: float, kind: int, what: object = None) -> None:
    self._num_pushed += 1
    heapq.heappush(self._heap, (at_secs, kind, self._num_pushed, what))

  def _wake_later(self, at_secs: float) -> None:
    if at_secs != self._wake_at:
      self._wake_at = at_secs
      self._push(at_secs, _WAKE)

  def _change(self, now: float, news: News) -> None:
    """Decides about a change; in a step, joins and notices wait for its end."""
    roster = self._roster
    hurts = any(n < self._places.num_owners for n in roster.find(news.lost))
    if hurts and self._mode == "restart":
      # No node has loaded its state yet, so all start over.
      self._places, numbers = self._policy.disband(self._places)
      roster.rearrange(numbers)
      self._mode = "idle"
    change = decide.Change(
        lost=roster.find(news.lost),
        joined=roster.seat(news.added),
        noticed=roster.find(news.noticed),
    )
    if self._mode == "idle" or (hurts and not self._books.elapsed_secs):
      self._decide(now, change, when="boundary")
    else:
      self._must_look |= bool(change.joined or change.noticed)
      self._decide(now, change, when="step")

  def _decide(self, now: float, change: decide.Change, *, when: str) -> None:
    books, roster = self._books, self._roster
    answer = self._policy.answer(self._places, change, when=when, find_zones=roster.zones)
    decision = answer.decision
    if decision.rolls_back:
      books.roll_back()
      self._num_rollbacks += 1
    elif decision.rung == "checkpoint" and self._places.num_training:
      books.save()
    self._places = answer.places
    roster.rearrange(answer.numbers)
    books.set_nodes(live=roster.num_live, training=answer.places.num_training)
    if decision.rung in ("wait", "stop"):
      self._mode, self._wake_at = "idle", None
      books.pause("idle")
    elif decision.rung != "none":
      self._carry_out(now, answer, when, is_loss=bool(change.lost))
    elif self._mode == "run":
      self._train(now)
    if decision.rung != "none":
      self._rungs[decision.rung] += 1
    self._note(now, decision.rung, decision.reason, change)

  def _carry_out(self, now: float, answer: PlacedDecision, when: str, *, is_loss: bool) -> None:
    books, rung, delay = self._books, answer.decision.rung, answer.delay
    secs = delay.secs + delay.left_share * max(0.0, books.step_end_secs - now)
    if is_loss:
      secs += self._policy.times.durations.detect_secs
    mode, kind = "pause", "recovery"
    if rung == "checkpoint":
      mode, kind = "restart", "restart"
    elif rung == "reconfigure":
      books.lose_step()
    elif when == "step" and rung == "drop":
      books.change_samples(answer.places.cost)
    # After a loss, a run decides again before it trains: of those left, some may be leaving.
    self._must_look |= when == "step" and rung != "checkpoint"
    if mode == self._mode == "pause" and self._wake_at:
      now = max(now, self._wake_at)  # It was interrupted earlier.
    self._mode = mode
    books.pause(kind)
    self._wake_later(now + secs)

  def _train(self, now: float) -> None:
    books = self._books
    self._mode = "run"
    books.train(None if books.elapsed_secs else self._places.cost)
    if self._must_look:
      self._wake_later(books.step_end_secs)

  def _note(
      self, now: float, rung: str, reason: str, change: decide.Change = decide.NOTHING
  ) -> None:
    if not self._keep_moments:
      return
    changes = {"lost": change.lost, "ready": change.joined, "given notice": change.noticed}
    words = [f"{len(n)} {what}" for what, n in changes.items() if n]
    rate = 0.0
    if self._mode == "run":
      rate = self._places.cost.num_samples / self._places.cost.secs
    pipelines = self._places.layout.pipelines
    self._moments.append(
        Moment(
            secs=now,
            samples_per_sec=rate,
            num_nodes=self._roster.num_live,
            rung=rung,
            text="; ".join([*words, reason]),
            owners=tuple(self._roster.names(p.roles.owners) for p in pipelines),
        )
    )
