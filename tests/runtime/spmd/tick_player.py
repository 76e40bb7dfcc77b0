"""Plays a table of ticks as a program does, with keys for arrays."""

import itertools

from bamboo_jax import base
from bamboo_jax.runtime.spmd import ticks as ticks_lib
from bamboo_jax.schedule import checker, holdings as holdings_lib, instruction, lines as lines_lib

Op = instruction.Op


def check(table, *, widen=0, segment_ticks=3):
  """Raises unless the table does the step: its work as rows, its arrays by slots."""
  rows, line = as_rows(table), lines_lib.Line(range_of(table), range(table.num_microbatches))
  checker.check(rows, [line], dict(base.by_node(find_start(table))))
  sizes = table.least_sizes(segment_ticks, keeps=True)
  wider = {kind: getattr(sizes, kind) + widen for kind in (*ticks_lib.KINDS, "spare")}
  Player(table, sizes._replace(**wider)).run()


def find_start(table):
  """Returns the holdings of each node before the first tick: its arrays, and its sums."""
  return [
      holdings_lib.Holdings(
          *(
              {key for (kind, key), life in lives.items() if kind == one and life.made < 0}
              for one in ticks_lib.KINDS
          ),
          find_accumulated(table, n, 0),
      )
      for n, lives in enumerate(table.lives)
  ]


def find_accumulated(table, n, num_ticks):
  """Returns the backward passes whose gradients are in a node's sums after some ticks."""
  owned = [stage for stage, owner in enumerate(table.owners) if owner == n]
  left = {i.item for row in table.ticks[num_ticks:] for i in row[n] if i.op is Op.BACKWARD}
  return {*itertools.product(owned, range(table.num_microbatches))} - left


def range_of(table):
  return tuple(map(base.NodeId, table.owners))


def as_rows(table):
  """Returns the rows of a table; results are sent at the end of their tick."""
  nodes = base.nodes(table.num_nodes)
  rows = {n: [] for n in nodes}
  for t, tick in enumerate(table.ticks):
    for n in nodes:
      rows[n] += tick[n]
    for n in nodes:
      for kind, key in arrivals(table, t, n):
        source = nodes[(n - 1 if kind == "activations" else n + 1) % len(nodes)]
        transfer = instruction.Transfer(kind, *key, source, n)
        rows[source].append(transfer.send)
        rows[n].append(transfer.receive)
  return rows


def arrivals(table, t, n):
  """Returns the arrays that arrive at a node at the end of a tick."""
  return [array for array, life in table.lives[n].items() if life.made == t < life.first]


class Player:
  """The buffers of all nodes; raises `AssertionError` at a wrong read."""

  def __init__(self, table, sizes):
    self.table, self.sizes = table, sizes
    self.buffers = []
    for n, lives in enumerate(table.lives):
      loaded = [array for array, life in lives.items() if life.made < 0 and array[0] != "residuals"]
      held = {(array[0], table.find_slot(n, array, sizes)): array[1] for array in loaded}
      assert len(held) == len(loaded), "two arrays in a slot"
      held |= {("host", slot): key for key, slot in table.fetches(n).items()}
      self.buffers.append(held)
    self.offloaded = [[] for _ in table.lives]

  def run(self):
    array = self.table.as_array(self.sizes)
    for segment in range(array.shape[1]):
      self.run_segment(segment, array[:, segment])

  def run_segment(self, segment, array):
    for t in range(self.sizes.num_ticks):
      sent = [self.run_node(n, row.tolist()) for n, row in enumerate(array[:, t])]
      for n, (to_next, to_last) in enumerate(array[:, t, -1, :2]):
        before, behind = sent[n - 1][0], sent[(n + 1) % len(sent)][1]
        for kind, slot, key in (("activations", to_next, before), ("gradients", to_last, behind)):
          if slot >= 0:
            self.put(n, kind, int(slot), key)
    for n, own in enumerate(self.offloaded):
      num_ticks = (segment + 1) * self.sizes.num_ticks
      contents = self.table.find_contents(n, num_ticks, self.sizes)
      left = {
          key: slot for (kind, key), at, slot in contents if kind == "residuals" and at == segment
      }
      assert dict(own) == left, (own, left)
      own.clear()

  def run_node(self, n, row):
    *forwards, back = itertools.starmap(ticks_lib.Pass, row[:-1])
    output = grad = None
    for p in forwards:
      if p.microbatch < 0:
        continue
      key = self.key(n, p)
      if p.stage:
        self.read(n, "activations", p.inputs, holdings_lib.input_of(key))
      self.put(n, "residuals", p.residual, key)
      if p.host >= 0:
        self.offloaded[n].append((key, p.host))
      else:
        output = key
      if p.output >= 0:
        self.put(n, "activations", p.output, key)
    # Residuals leave beside the backward pass.
    for key, _ in self.offloaded[n]:
      assert key not in self.table.fetches(n)
    if back.microbatch >= 0:
      key = self.key(n, back)
      if back.host >= 0:
        self.read(n, "host", back.host, key)
        self.put(n, "residuals", back.residual, key)
      self.read(n, "residuals", back.residual, key)
      if back.stage + 1 < self.table.num_stages:
        self.read(n, "gradients", back.inputs, key)
      grad = holdings_lib.input_of(key)
      if back.output >= 0:
        self.put(n, "gradients", back.output, grad)
    return output, grad

  def key(self, n, p):
    assert self.table.stages[n][p.hold] == p.stage
    return p.stage, p.microbatch

  def read(self, n, kind, slot, key):
    found = self.buffers[n].get((kind, slot))
    assert found == key, f"slot {slot} of {kind} of node {n} holds {found}, not {key}"

  def put(self, n, kind, slot, key):
    assert key is not None
    self.buffers[n][kind, slot] = key
