"""Every state in which a failure can find the nodes of a pipeline.

A cut says how far each node has come in its row. A receive needs its send, but
a sender may be far ahead: cuts include transfers that are sent and not yet
received.
"""

from collections.abc import Iterator, Mapping
import random

from bamboo_jax.schedule import holdings as holdings_lib, instruction as instruction_lib

Cut = tuple[int, ...]


class Cuts:
  """The cuts of rows, told apart by what the nodes hold.

  Only passes and receives, the events, change that. A cut is the number of
  events that each node has finished, in the order of `nodes`, sends aside.
  """

  def __init__(
      self,
      rows: Mapping[int, instruction_lib.Row],
      *,
      holdings: Mapping[int, holdings_lib.Holdings] | None = None,
  ) -> None:
    self.nodes = tuple(rows)
    events = [[i for i in row if not i.is_send] for row in rows.values()]
    # For each event of each node, the node and the number of its events that
    # must have been finished before.
    sends = _sends(rows)
    self._needs = [
        [sends[i.transfer(node)] if i.is_receive else (0, 0) for i in node_events]
        for node, node_events in zip(self.nodes, events, strict=True)
    ]
    self._held = []
    for node, node_events in zip(self.nodes, events, strict=True):
      ledger = holdings_lib.HoldingsLedger((holdings or {}).get(node, holdings_lib.NOTHING))
      held = [ledger.holdings()]
      for i in node_events:
        ledger.add(i)
        held.append(ledger.holdings())
      self._held.append(held)

  def __iter__(self) -> Iterator[Cut]:
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

  def draw(self, rng: random.Random) -> Cut:
    """Returns a random cut: nodes have run events in a random order."""
    cut = [0] * len(self.nodes)
    for _ in range(rng.randint(0, sum(map(len, self._needs)))):
      cut[rng.choice(self._movable(cut))] += 1
    return tuple(cut)

  def holdings(self, cut: Cut) -> dict[int, holdings_lib.Holdings]:
    """Returns the holdings of each node at `cut`."""
    return {
        node: held[count] for node, held, count in zip(self.nodes, self._held, cut, strict=True)
    }

  def _movable(self, cut: Cut | list[int]) -> list[int]:
    """Returns the positions of the nodes that can finish one more event."""
    movable = []
    for k, needs in enumerate(self._needs):
      if cut[k] < len(needs):
        sender, count = needs[cut[k]]
        if cut[sender] >= count:
          movable.append(k)
    return movable


def _sends(
    rows: Mapping[int, instruction_lib.Row],
) -> dict[instruction_lib.Transfer, tuple[int, int]]:
  """Returns the sender's position, and its number of earlier events."""
  sends = {}
  for k, (node, row) in enumerate(rows.items()):
    num_events = 0
    for i in row:
      if i.is_send:
        sends[i.transfer(node)] = k, num_events
      else:
        num_events += 1
  return sends
