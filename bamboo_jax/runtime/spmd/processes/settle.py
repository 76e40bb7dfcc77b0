"""Ends transfers between live nodes when a step is interrupted.

A transfer takes both ends, and a device runs its transfers in the order in
which they were begun. So a node that has begun one waits until the other end
begins it too; if the other end was interrupted, it has to answer without data.
Which nodes answer, and in which order, follows from the transfers that all live
nodes have begun since they were last settled. Pure.

     node 0          node 1          node 2
        | a (0,1) begun |               x dies
        | - - - - - - > |  was stopped before it began a
    1.  |<=========== begun ==========>|  each sends its begun transfers
    2.  | find_unanswered, the same everywhere: node 1 answers a
    3.  |<------ a ---- |  without data; node 0 drops it
    4.  settled: no device of a live node waits
"""

import collections
from collections.abc import Iterable, Mapping
import graphlib
import itertools
from typing import Any

from bamboo_jax import base
from bamboo_jax.schedule import channel as channel_lib

# The n-th transfer on a channel.
_Entry = tuple[channel_lib.Channel, int]


def find_unanswered(
    begun: Mapping[base.NodeId, channel_lib.Begun],
) -> dict[base.NodeId, tuple[channel_lib.Channel, ...]]:
  """Returns the transfers that each node has to answer, in order.

  The rows of all nodes are projections of one order, so there is an order that
  agrees with what every node has begun and with its later answers; nodes that
  follow the same one never wait for each other in a cycle.

  If nodes were settled at different times, the transfers of the one settled
  earlier have all ended. Transfers with a dead end are ignored.
  """
  settled = max(b.since for b in begun.values())
  rows = {
      node: _number(b.channels, begun) if b.since == settled else [] for node, b in begun.items()
  }
  entries = {entry for row in rows.values() for entry in row}
  before: dict[Any, set[Any]] = {entry: set() for entry in entries}
  unanswered = {}
  for node, row in rows.items():
    for first, second in itertools.pairwise(row):
      before[second].add(first)
    own = {e for e in entries if node in e[0].nodes}
    unanswered[node] = own - set(row)
    for entry in unanswered[node]:  # A device keeps the order of its transfers.
      before[entry].update(row[-1:])
  order = _sort(before)
  return {node: tuple(e[0] for e in order if e in unanswered[node]) for node in rows}


def _number(
    channels: Iterable[channel_lib.Channel], live: Mapping[base.NodeId, channel_lib.Begun]
) -> list[_Entry]:
  """Numbers the channels of live ends by how often each occurred before."""
  counts = collections.Counter[channel_lib.Channel]()
  numbered = []
  for channel in channels:
    if all(node in live for node in channel.nodes):
      numbered.append((channel, counts[channel]))
      counts[channel] += 1
  return numbered


def _sort(before: Mapping[_Entry, set[_Entry]]) -> list[_Entry]:
  """Returns an order of all entries, the same on every node."""
  sorter, order = graphlib.TopologicalSorter(before), []
  sorter.prepare()
  while sorter.is_active():
    free = sorted(sorter.get_ready())
    order += free
    sorter.done(*free)
  return order
