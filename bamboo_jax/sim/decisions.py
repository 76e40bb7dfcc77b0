"""Asks `recovery.decide`, and caches the answers.

A decision depends on places, not on the names of nodes. So nodes are numbered
by their places, pipeline by pipeline and then the spares, and answers are
cached by these numbers. Only a restart depends on the zones of nodes: it is
asked about each time.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from bamboo_jax import base
from bamboo_jax.recovery import decide, layout as layout_lib, planner as planner_lib
from bamboo_jax.sim import times as times_lib

Planner = planner_lib.Planner
Layout = layout_lib.Layout
Change = decide.Change


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
  """A layout whose nodes are numbered by their places.

  Attributes:
    num_owners: Places below this one are of pipelines, the rest of spares. The
      dead owner of a vacant stage keeps its place.
    num_training: Nodes that have a stage.
  """

  layout: Layout
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
      planner: Planner,
      times: times_lib.PipelineTimes,
      *,
      market: str = "spot",
      heeds_zones: bool = True,
  ) -> None:
    self.name, self.market, self._heeds = name, market, heeds_zones
    self.ladder, self.planner, self.times = ladder, planner, times
    self._places: dict[tuple[Any, ...], Places] = {}
    self._answers: dict[tuple[Any, ...], PlacedDecision] = {}
    self.empty, _ = self._find_places(Layout())

  def answer(
      self,
      places: Places,
      change: Change,
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
    return self._find_places(Layout(spares=before.live, leaving=before.leaving))

  def _ask(self, layout: Layout, change: Change, when: str) -> PlacedDecision:
    decision = decide.decide(layout, change, ladder=self.ladder, planner=self.planner, when=when)
    delay = self.times.delay(decision, layout.pipelines, when=when)
    return PlacedDecision(decision, *self._find_places(decision.layout), delay)

  def _find_places(self, layout: Layout) -> Numbered:
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
          layout=Layout(pipelines, spares=spares, leaving=leaving),
          num_places=len(numbers),
          num_owners=len(owners),
          num_training=sum(len(p.nodes) for p in pipelines),
          times=self.times,
      )
    return self._places[key], numbers
