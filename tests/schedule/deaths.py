"""Checks without a device that a step survives deaths wherever they happen.

A cut says how far each node has come in its row; transfers may be sent and not
received. For each cut and each choice of victims, the rest of the step is planned
and checked. If stages have lost all copies, the error has to name just them.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax import config as config_lib
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.schedule import (
    checker,
    costs as costs_lib,
    failover,
    holdings as holdings_lib,
    lines as lines_lib,
    simulate as simulate_lib,
)
from tests import schedules


class Cuts:
  """The cuts of rows, told apart by what the nodes hold.

  Only passes and receives, the events, change that. A cut is the number of
  events that each node has finished, in the order of `nodes`, sends aside.
  """

  def __init__(self, rows, holdings=None):
    self.nodes = tuple(rows)
    sends, events, self._held = {}, [], []
    for k, (node, row) in enumerate(rows.items()):
      own, held = [], [(holdings or {}).get(node, holdings_lib.NOTHING)]
      for i in row:
        if i.is_send:
          sends[i.transfer(node)] = k, len(own)
          continue
        own.append(i)
        held.append(holdings_lib.after([i], held[-1]))
      events.append(own)
      self._held.append(held)
    # For each event of each node, the node and the number of its events that
    # must have been finished before.
    self._needs = [
        [sends[i.transfer(node)] if i.is_receive else (0, 0) for i in own]
        for node, own in zip(self.nodes, events, strict=True)
    ]

  def __iter__(self):
    """Yields every cut once, that at the start of all rows first."""
    first = (0,) * len(self.nodes)
    seen, todo = {first}, [first]
    while todo:
      cut = todo.pop()
      yield cut
      for k in self._movable(cut):
        following = (*cut[:k], cut[k] + 1, *cut[k + 1 :])
        if following not in seen:
          seen.add(following)
          todo.append(following)

  def draw(self, rng):
    """Returns a random cut: nodes have run events in a random order."""
    cut = [0] * len(self.nodes)
    for _ in range(rng.randint(0, sum(map(len, self._needs)))):
      cut[rng.choice(self._movable(cut))] += 1
    return tuple(cut)

  def holdings(self, cut):
    """Returns the holdings of each node at `cut`."""
    return {
        node: held[count] for node, held, count in zip(self.nodes, self._held, cut, strict=True)
    }

  def _movable(self, cut):
    """Returns the positions of the nodes that can finish one more event."""
    left = [(k, needs[cut[k]]) for k, needs in enumerate(self._needs) if cut[k] < len(needs)]
    return [k for k, (sender, count) in left if cut[sender] >= count]


@dataclasses.dataclass(frozen=True)
class Step:
  """A step of one pipeline in which nodes are to die; by default of equal stages."""

  owners: Sequence[int]
  num_microbatches: int
  mode: str = "eager"
  costs: costs_lib.StageCosts | None = None
  in_flight: Sequence[int] | None = ()
  first: int = 0

  @property
  def roles(self):
    return failover.Roles.initial(self.owners, has_replicas=self.mode != "none")

  def _line(self, owners):
    last, limits = self.first + self.num_microbatches, self.in_flight
    limits = lines_lib.in_flight_limits(len(owners)) if limits == () else limits
    return lines_lib.Line(owners, range(self.first, last), limits)

  @property
  def _costs(self):
    return self.costs or schedules.uniform_costs(len(self.owners))

  def plan(self):
    """Returns its rows if nobody dies; checked. "eager" fills any wait."""
    line = self._line(self.owners)
    planned = rows_lib.plan_rows(
        config_lib.RedundancySection(self.mode, margin=0.0),
        line,
        self.roles.shadows,
        costs=self._costs,
        overrun=99.0,
    )
    checker.check(planned.timeline.instructions, [line])
    return planned

  def fail_over(self, roles, held, victims):
    """Returns the roles, holdings and rows of the rest; None if stages are lost."""
    lost = tuple(
        s for s, n in enumerate(roles.owners) if {n, roles.shadows.get(s, n)} <= {*victims}
    )
    after, gone = failover.fail_over(roles, victims)
    assert gone == {*lost}, (roles, victims, gone)
    if gone:
      return None
    valid = failover.find_valid(after, held)
    held = {node: held[node] for node in after.nodes}
    lines = [self._line(after.owners)]
    rows = simulate_lib.simulate(lines, costs=self._costs, holdings=valid).instructions
    checker.check(rows, lines, held)
    return after, held, rows
