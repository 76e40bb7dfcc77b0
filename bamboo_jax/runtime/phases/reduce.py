"""Sums gradients: of tied parameters, then over all shares; norms and losses.

Each layer that uses a tied parameter keeps its own copy, so that any partition
can hold it. Copies start equal and stay equal because each gets the same
gradient: the sum over all layers that use it, added in model order. For each
share of the batch, on the nodes that compute it:

     node 0, layer a              node 3, layer b
  1.    |--------- grad of a ---------->|  to all other nodes of the group
  2.    |<-------- grad of b -----------|
  3. a + b                           a + b  beside the accumulators

The accumulators do not change, so after a death the phase can be repeated.

The sum of a share lies on the node that computed it, and the sum over all
shares on all nodes that hold one. Shares are added from left to right in the
order of their index, so the bits do not depend on the nodes that computed them.
Between processes that is `wire.ordered_sum`. Within one, each unit is added on
one device, and units take the devices in turn:

  device 0   a0 a1    a0 + b0 (b0 was copied here)    a0+b0, a1+b1
  device 1   b0 b1    a1 + b1 (a1 was copied here)    a0+b0, a1+b1

With one share on each of D devices, a device sends 2 (D - 1) / D gradients.
"""

from collections.abc import Mapping, Sequence
import itertools

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib, node as node_lib, places
from bamboo_jax.runtime.stage import array_store as store_lib, spec as spec_lib
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.schedule import channel as channel_lib


def compile_add(unit: spec_lib.StageSpec, device: jax.Device) -> None:
  where = jax.sharding.SingleDeviceSharding(device)
  put = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where)
  like = jax.tree.map(put, unit.accumulator)
  ordered_sum.add.lower([like, like]).compile()


def compile_ties(engine: engine_lib.Engine, place: places.Place) -> None:
  for group in engine.ties:
    copy = group[0]
    like = engine.units[copy.unit].accumulator.grads[copy.layer][copy.param]
    named = {copy.param: np.zeros(like.shape, like.dtype)}
    where = places.of_state(place, named, engine.specs[0].model.name)
    zeros = jax.device_put(named, where)[copy.param]
    ordered_sum.add([zeros] * len(group))  # The first call compiles.


def tie(engine: engine_lib.Engine) -> None:
  """Sums the gradients of tied parameters, beside the accumulators."""
  tied: dict[store_lib.Sum, spec_lib.Accumulator] = {}
  for row, shares in engine.lines:
    for share, group in itertools.product(shares, engine.ties):
      tied |= _tie_group(engine, group, row, share, tied)
  engine.results.tied = tied


def _tie_group(
    engine: engine_lib.Engine,
    group: Sequence[spec_lib.TiedCopy],
    row: Sequence[base.NodeId],
    share: base.ShareId,
    tied: Mapping[store_lib.Sum, spec_lib.Accumulator],
) -> dict[store_lib.Sum, spec_lib.Accumulator]:
  """Returns the accumulators that change, by unit and share."""
  nodes, held, parts = engine.nodes, {}, {}
  for copy in group:
    if (node := row[copy.stage]) in nodes:
      key = (copy.unit, share)
      # Another group may have changed it before.
      held[key] = tied.get(key, nodes[node].store.accumulators[key])
      parts[node, copy] = held[key].grads[copy.layer][copy.param]
  # All nodes walk one order, so none waits in a circle.
  for copy, source, destination in _transfers(group, row):
    if nodes.keys() & {source, destination}:
      link = engine.links.get(channel_lib.Channel("tie", (source, destination), copy))
      if source in nodes:
        link.send(parts[source, copy])
      if destination in nodes:
        parts[destination, copy] = link.receive()
  for copy in group:
    if (node := row[copy.stage]) in nodes:
      key = (copy.unit, share)
      grads = [*held[key].grads]
      total = ordered_sum.add([parts[node, c] for c in group])
      grads[copy.layer] = {**grads[copy.layer], copy.param: total}
      held[key] = held[key].replace(grads=tuple(grads))
  return held


def _transfers(
    group: Sequence[spec_lib.TiedCopy], row: Sequence[base.NodeId]
) -> list[tuple[spec_lib.TiedCopy, base.NodeId, base.NodeId]]:
  """Returns source, destination and copy, in one order for all nodes."""
  transfers = []
  holders = sorted({row[copy.stage] for copy in group})
  for copy in group:
    source = row[copy.stage]
    transfers += [(copy, source, to) for to in holders if to != source]
  return transfers


def find_nodes(
    stage: base.StageId, owners: engine_lib.Owners, lines: engine_lib.Lines
) -> tuple[base.NodeId, ...]:
  """Returns the nodes that need the sums of a stage.

  First those that computed the shares, one for each share in order, then owners
  without a share.
  """
  holder = {share: row[stage] for row, own in lines for share in own}
  nodes = [holder[share] for share in sorted(holder)]
  return (*nodes, *sorted({row[stage] for row in owners}.difference(nodes)))


def reduce(engine: engine_lib.Engine) -> None:
  """Sums the shares of each unit that is computed or owned here.

  The passes are over, so nodes drop their low-precision copies of weights.
  """
  totals, tied = {}, engine.results.tied
  for node in engine.nodes.values():
    node.store.copies.clear()
  shares = sorted(share for _, own in engine.lines for share in own)
  for stage, spec in base.by_stage(engine.specs):
    nodes = find_nodes(stage, engine.owners, engine.lines)
    if engine.nodes.keys().isdisjoint(nodes):
      continue
    for index, unit in enumerate(spec.units):
      parts = {}
      # At the end of `nodes` there may be owners without a share.
      for place, (share, holder) in enumerate(zip(shares, nodes, strict=False)):
        if holder in engine.nodes:
          key = (unit.first, share)
          parts[place] = tied.get(key) or engine.nodes[holder].store.accumulators[key]
      totals[unit.first] = _add(engine, unit, index, nodes, parts)
  engine.results.totals = totals


def _add(
    engine: engine_lib.Engine,
    unit: spec_lib.StageSpec,
    index: int,
    nodes: tuple[base.NodeId, ...],
    parts: Mapping[int, spec_lib.Accumulator],
) -> dict[places.Place, spec_lib.Accumulator]:
  """Returns the sum of a unit, by place.

  `index` is that of the unit in its stage; `parts` are the local accumulators by
  place in `nodes`.
  """
  if engine.exchange is None or len({*nodes}) == 1:  # One node holds all shares.
    local: Sequence[base.NodeId] = nodes
    devices = list(dict.fromkeys(engine.devices[n] for n in nodes))
    total = _add_here(parts, devices[index % len(devices)])
  else:
    local = [*engine.nodes]  # With an exchange there is one.
    num_computed = sum(len(own) for _, own in engine.lines)
    program = ordered_sum.OrderedSum(
        *(nodes[:num_computed], nodes[num_computed:]),
        me=local[0],
        like=unit.accumulator,
        device=jax.local_devices(backend="cpu")[0],
    )
    channel = channel_lib.Channel("sum", nodes, (unit.first,))
    total = program(engine.exchange, str(channel), parts)
  totals = {}
  for place in dict.fromkeys(engine.nodes[node].device for node in local):
    where = places.of_state(place, total, unit.model.name)
    totals[place] = jax.device_put(total, where)
  return totals


def _add_here(
    parts: Mapping[int, spec_lib.Accumulator], device: jax.Device
) -> spec_lib.Accumulator:
  """Returns the sum of all shares of a unit, all of which are local."""
  total, *others = (parts[place] for place in range(len(parts)))
  for part in others:  # None is donated: they may be needed.
    total = ordered_sum.add(jax.device_put([total, part], device))
  return total


def owned_totals(engine: engine_lib.Engine) -> dict[engine_lib.UnitOnNode, spec_lib.Accumulator]:
  """Returns the sums by unit and local owner, where they are present.

  A node that became the owner after the sum has the sum that `refresh` sent it.
  """
  nodes, totals = engine.nodes, engine.results.totals
  return {
      (unit.first, number): totals[unit.first][nodes[number].device]
      for row in engine.owners
      for stage, number in base.by_stage(row)
      if number in nodes
      for unit in engine.specs[stage].units
      if nodes[number].device in totals[unit.first]
  }


def stage_norms(engine: engine_lib.Engine) -> dict[base.StageId, np.ndarray]:
  """Returns the squared gradient norm of each layer, by stage of a local owner.

  Blocks until they are computed.
  """
  norms = {}
  for stage, spec in base.by_stage(engine.specs):
    if node := _local_owner(engine, stage):
      totals = [(unit, engine.results.totals[unit.first][node.device]) for unit in spec.units]
      norms[stage] = [node.norms(unit, total) for unit, total in totals]
  return {
      stage: np.concatenate([np.asarray(n, np.float64) for n in parts])
      for stage, parts in norms.items()
  }


def loss(engine: engine_lib.Engine) -> np.ndarray:
  """Returns the sums of `layer.Loss.stack`; blocks."""
  node = _local_owner(engine, base.StageId(len(engine.specs) - 1))
  assert node is not None, "the last stage is not local"
  total = engine.results.totals[max(engine.units)][node.device]
  return np.asarray(total.loss, np.float64)


def _local_owner(engine: engine_lib.Engine, stage: base.StageId) -> node_lib.Node | None:
  nodes = engine.nodes
  local = (nodes[r[stage]] for r in engine.owners if r[stage] in nodes)
  return next(local, None)
