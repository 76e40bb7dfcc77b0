"""Sums the gradients of parameters that layers share.

Each layer that uses a tied parameter keeps its own copy, so that any partition
can hold it. Copies start equal and stay equal because each gets the same
gradient: the sum over all layers that use it, added in model order.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import operator

import jax
import numpy as np

from bamboo_jax.cluster import settle
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class Copy:
  """One copy of a tied parameter, by names."""

  stage: int
  layer: str
  param: str

  def channel(self, source: int, destination: int) -> settle.Channel:
    """Returns the channel on which a node sends it to another."""
    key = (self.stage, self.layer, self.param)
    return settle.Channel("tie", (source, destination), key)


def find_copies(
    specs: Sequence[spec_lib.StageSpec],
) -> tuple[tuple[Copy, ...], ...]:
  """Returns the copies of each tied parameter, in model order."""
  groups: dict[tuple[str, str], list[Copy]] = {}
  stages = {l.name: s for s, spec in enumerate(specs) for l in spec.layers}
  for layer in specs[0].model.layers:
    for tie in layer.ties:
      owner = Copy(stages[tie.layer], tie.layer, tie.layer_param)
      group = groups.setdefault((tie.layer, tie.layer_param), [owner])
      group.append(Copy(stages[layer.name], layer.name, tie.param))
  return tuple(tuple(group) for group in groups.values())


def find_channels(
    specs: Sequence[spec_lib.StageSpec], row: Sequence[int]
) -> set[settle.Channel]:
  """Returns the channels that a pipeline needs."""
  return {
      copy.channel(*ends)
      for group in find_copies(specs)
      for copy, *ends in _transfers(group, row)
  }


def compile_for(engine: engine_lib.Engine, node: node_lib.Node) -> None:
  """Compiles the programs of a node as the owner of its stages."""
  for group in find_copies(engine.specs):
    if not any(copy.stage in node.programs for copy in group):
      continue
    copy = group[0]
    like = engine.specs[copy.stage].accumulator.grads[copy.layer][copy.param]
    named = {copy.param: np.zeros(like.shape, like.dtype)}
    where = places.of_state(node.device, named, engine.specs[0].model.name)
    zeros = jax.device_put(named, where)[copy.param]
    _add([zeros] * len(group))


def tie(engine: engine_lib.Engine) -> None:
  """Sums the gradients of tied parameters, beside the accumulators."""
  groups, changed = find_copies(engine.specs), {}
  for row, shares in engine.lines:
    for share in shares if groups else ():
      held = {
          (stage, node): engine.nodes[node].store.accumulators[stage, share]
          for stage, node in enumerate(row)
          if node in engine.nodes
      }
      for stage, tied in _tie_share(engine, groups, row, held).items():
        changed[stage, share] = tied
  engine.results.tied = changed


def _tie_share(
    engine: engine_lib.Engine,
    groups: Sequence[tuple[Copy, ...]],
    row: Sequence[int],
    held: Mapping[tuple[int, int], spec_lib.Accumulator],
) -> dict[int, spec_lib.Accumulator]:
  """Returns the accumulators of a share that differ from `held`, by stage."""
  tied = {stage: accumulator for (stage, _), accumulator in held.items()}
  changed = {}
  for group in groups:
    parts = {
        (row[copy.stage], copy): tied[copy.stage].grads[copy.layer][copy.param]
        for copy in group
        if copy.stage in tied
    }
    for copy, source, destination in _transfers(group, row):
      local = {node for _, node in held} & {source, destination}
      if not local:
        continue
      link = engine.links.get(copy.channel(source, destination))
      if source in local:
        link.send(parts[source, copy])
      if destination in local:
        parts[destination, copy] = link.receive()
    for copy in group:
      if copy.stage in tied:
        node = row[copy.stage]
        total = _add([parts[node, c] for c in group])
        tied[copy.stage] = _replace(tied[copy.stage], copy, total)
        changed[copy.stage] = tied[copy.stage]
  return changed


@jax.jit
def _add(parts: list[jax.Array]) -> jax.Array:
  return functools.reduce(operator.add, parts)


def _transfers(
    group: tuple[Copy, ...], row: Sequence[int]
) -> list[tuple[Copy, int, int]]:
  """Returns source, destination and copy, in one order for all nodes."""
  transfers = []
  holders = sorted({row[copy.stage] for copy in group})
  for copy in group:
    source = row[copy.stage]
    transfers += [(copy, source, to) for to in holders if to != source]
  return transfers


def _replace(
    accumulator: spec_lib.Accumulator, copy: Copy, value: jax.Array
) -> spec_lib.Accumulator:
  layer = {**accumulator.grads[copy.layer], copy.param: value}
  return accumulator.replace(grads={**accumulator.grads, copy.layer: layer})
