"""Sums the gradients of parameters that layers share.

Each layer that uses a tied parameter keeps its own copy, so that any partition
can hold it. Copies start equal and stay equal because each gets the same
gradient: the sum over all layers that use it, added in model order.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import operator

import jax

from bamboo_jax.runtime import link as link_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class Copy:
  """One copy of a tied parameter.

  Attributes:
    stage: Stage that holds it.
    layer: Name of the layer.
    param: Name of the parameter in the layer.
  """

  stage: int
  layer: str
  param: str


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


class TieSum:
  """Adds up the gradients of tied parameters within each pipeline."""

  def __init__(
      self,
      specs: Sequence[spec_lib.StageSpec],
      *,
      owners: Sequence[Sequence[int]],
      devices: Mapping[int, jax.Device],
      link_kind: str,
  ) -> None:
    self._groups = find_copies(specs)
    self._owners = owners
    self._links: dict[tuple[Copy, int, int], link_lib.Link] = {}
    self._add = jax.jit(lambda parts: functools.reduce(operator.add, parts))
    process = jax.process_index()
    for row in owners:
      for group in self._groups:
        for copy, source, destination in _transfers(group, row):
          ends = (devices[source], devices[destination])
          if any(end.process_index == process for end in ends):
            like = specs[copy.stage].accumulator.grads[copy.layer][copy.param]
            self._links[copy, source, destination] = link_lib.make_link(
                *ends, like=like, kind=link_kind
            )

  def __call__(
      self,
      nodes: Mapping[int, node_lib.Node],
      shares: Callable[[int], Sequence[int]],
  ) -> None:
    """Replaces the gradients in the accumulators of local nodes.

    Args:
      nodes: Local nodes by number.
      shares: Returns the shares of a pipeline.
    """
    for pipeline, row in enumerate(self._owners):
      for group in self._groups:
        for share in shares(pipeline):
          self._sum(group, row, nodes, share)

  def _sum(
      self,
      group: tuple[Copy, ...],
      row: Sequence[int],
      nodes: Mapping[int, node_lib.Node],
      share: int,
  ) -> None:
    parts: dict[tuple[int, Copy], jax.Array] = {}
    for copy in group:
      node = row[copy.stage]
      if node in nodes:
        held = nodes[node].accumulators[copy.stage, share]
        parts[node, copy] = held.grads[copy.layer][copy.param]
    for copy, source, destination in _transfers(group, row):
      link = self._links.get((copy, source, destination))
      if source in nodes:
        link.send(parts[source, copy])
      if destination in nodes:
        parts[destination, copy] = link.receive()
    for copy in group:
      node = row[copy.stage]
      if node in nodes:
        total = self._add([parts[node, c] for c in group])
        held = nodes[node].accumulators
        held[copy.stage, share] = _replace(held[copy.stage, share], copy, total)


def _transfers(
    group: tuple[Copy, ...], row: Sequence[int]
) -> list[tuple[Copy, int, int]]:
  """Returns who sends which copy to whom, in one order for all nodes."""
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
