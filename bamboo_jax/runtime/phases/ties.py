"""Sums the gradients of parameters that layers share.

Each layer that uses a tied parameter keeps its own copy, so that any partition
can hold it. Copies start equal and stay equal because each gets the same
gradient: the sum over all layers that use it, added in model order. For each
share of the batch, on the nodes that compute it:

     node 0, layer a              node 3, layer b
  1.    |--------- grad of a ---------->|  to all other nodes of the group
  2.    |<-------- grad of b -----------|
  3. a + b                           a + b  beside the accumulators

The accumulators do not change, so after a death the phase can be repeated.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
import operator

import jax
import numpy as np

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import channel as channel_lib


@dataclasses.dataclass(frozen=True)
class TiedCopy:
  """One copy of a tied parameter, identified by names."""

  stage: int
  layer: str
  param: str

  def channel(self, source: int, destination: int) -> channel_lib.Channel:
    """Returns the channel on which `source` sends it to `destination`."""
    key = (self.stage, self.layer, self.param)
    return channel_lib.Channel("tie", (source, destination), key)


def find_copies(
    specs: Sequence[spec_lib.StageSpec],
) -> tuple[tuple[TiedCopy, ...], ...]:
  """Returns the copies of each tied parameter, in model order."""
  groups: dict[tuple[str, str], list[TiedCopy]] = {}
  stages = {l.name: s for s, spec in enumerate(specs) for l in spec.layers}
  for layer in specs[0].model.layers:
    for tie in layer.trained_ties:
      owner = TiedCopy(stages[tie.layer], tie.layer, tie.layer_param)
      group = groups.setdefault((tie.layer, tie.layer_param), [owner])
      group.append(TiedCopy(stages[layer.name], layer.name, tie.param))
  return tuple(tuple(group) for group in groups.values())


def compile_for(engine: engine_lib.Engine, node: node_lib.Node) -> None:
  """Compiles the programs that a node needs as the owner of its stages."""
  for group in find_copies(engine.specs):
    if not any(copy.stage in node.programs for copy in group):
      continue
    copy = group[0]
    like = engine.specs[copy.stage].accumulator.grads[copy.layer][copy.param]
    named = {copy.param: np.zeros(like.shape, like.dtype)}
    where = places.of_state(node.device, named, engine.specs[0].model.name)
    zeros = jax.device_put(named, where)[copy.param]
    _add([zeros] * len(group))  # The first call compiles.


def tie(engine: engine_lib.Engine) -> None:
  """Sums the gradients of tied parameters, beside the accumulators."""
  groups = find_copies(engine.specs)
  tied: dict[tuple[int, int], spec_lib.Accumulator] = {}
  for row, shares in engine.lines:
    for share, group in itertools.product(shares, groups):
      tied |= _tie_group(engine, group, row, share, tied)
  engine.results.tied = tied


def _tie_group(
    engine: engine_lib.Engine,
    group: Sequence[TiedCopy],
    row: Sequence[int],
    share: int,
    tied: Mapping[tuple[int, int], spec_lib.Accumulator],
) -> dict[tuple[int, int], spec_lib.Accumulator]:
  """Returns the accumulators that change, by stage and share."""
  nodes, held, parts = engine.nodes, {}, {}
  for copy in group:
    if (node := row[copy.stage]) in nodes:
      key = (copy.stage, share)
      # Another group may have changed it before.
      held[key] = tied.get(key, nodes[node].store.accumulators[key])
      parts[node, copy] = held[key].grads[copy.layer][copy.param]
  # All nodes walk one order, so none waits in a circle.
  for copy, *ends in _transfers(group, row):
    source, destination = ends
    if nodes.keys() & ends:
      link = engine.links.get(copy.channel(source, destination))
      if source in nodes:
        link.send(parts[source, copy])
      if destination in nodes:
        parts[destination, copy] = link.receive()
  for copy in group:
    if (node := row[copy.stage]) in nodes:
      grads = held[copy.stage, share].grads
      total = _add([parts[node, c] for c in group])
      layer = {**grads[copy.layer], copy.param: total}
      held[copy.stage, share] = held[copy.stage, share].replace(
          grads={**grads, copy.layer: layer}
      )
  return held


@jax.jit
def _add(parts: list[jax.Array]) -> jax.Array:
  return functools.reduce(operator.add, parts)


def _transfers(
    group: Sequence[TiedCopy], row: Sequence[int]
) -> list[tuple[TiedCopy, int, int]]:
  """Returns source, destination and copy, in one order for all nodes."""
  transfers = []
  holders = sorted({row[copy.stage] for copy in group})
  for copy in group:
    source = row[copy.stage]
    transfers += [(copy, source, to) for to in holders if to != source]
  return transfers
