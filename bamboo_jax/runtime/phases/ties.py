"""Sums the gradients of parameters that layers share.

Each layer that uses a tied parameter keeps its own copy, so that any partition
can hold it. Copies start equal and stay equal because each gets the same
gradient: the sum over all layers that use it, added in model order.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
import dataclasses
import functools
import operator

import jax
import numpy as np

from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import link as link_lib
from bamboo_jax.runtime.wire import links as links_lib


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
  """Adds up the gradients of tied parameters within a pipeline."""

  def __init__(
      self, specs: Sequence[spec_lib.StageSpec], *, links: links_lib.Links
  ) -> None:
    self._specs = specs
    self._groups = find_copies(specs)
    self._links = links

  def prepare(self, device: jax.Device, stages: Iterable[int]) -> None:
    """Compiles what a node on `device` needs as the owner of these stages."""
    stages = set(stages)
    for group in self._groups:
      if stages.isdisjoint(copy.stage for copy in group):
        continue
      copy = group[0]
      like = self._specs[copy.stage].accumulator.grads[copy.layer][copy.param]
      zeros = jax.device_put(np.zeros(like.shape, like.dtype), device)
      _add([zeros] * len(group))

  def connect(self, row: Sequence[int], local: Container[int]) -> None:
    """Makes the links of local nodes.

    Args:
      row: The node of each stage.
      local: Nodes of this process.
    """
    for group in self._groups:
      for copy, *ends in _transfers(group, row):
        if any(node in local for node in ends):
          self._link(copy, *ends)

  def ends(self, row: Sequence[int]) -> set[tuple[int, int]]:
    """Returns which nodes send to which others."""
    return {
        (source, to)
        for group in self._groups
        for _, source, to in _transfers(group, row)
    }

  def add(
      self,
      held: Mapping[tuple[int, int], spec_lib.Accumulator],
      row: Sequence[int],
  ) -> dict[int, spec_lib.Accumulator]:
    """Returns accumulators in which tied parameters have the sum of all copies.

    Args:
      held: Accumulators of one share by stage and node, of local nodes.
      row: The node of each stage.

    Returns:
      Those that differ from `held`, by stage; `held` is left as it is.
    """
    tied = {stage: accumulator for (stage, _), accumulator in held.items()}
    changed = {}
    for group in self._groups:
      parts = {
          (row[copy.stage], copy): tied[copy.stage].grads[copy.layer][
              copy.param
          ]
          for copy in group
          if copy.stage in tied
      }
      for copy, source, destination in _transfers(group, row):
        local = {node for _, node in held} & {source, destination}
        if not local:
          continue
        link = self._link(copy, source, destination)
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

  def _link(self, copy: Copy, source: int, destination: int) -> link_lib.Link:
    like = self._specs[copy.stage].accumulator.grads[copy.layer][copy.param]
    name = ("tie", copy.stage, copy.layer, copy.param)
    return self._links.get(name, source, destination, like=like)


@jax.jit
def _add(parts: list[jax.Array]) -> jax.Array:
  return functools.reduce(operator.add, parts)


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
