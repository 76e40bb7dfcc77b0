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
import operator

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib, node as node_lib, places
from bamboo_jax.runtime.stage import array_store as store_lib, spec as spec_lib
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.schedule import channel as channel_lib


def compile_add(unit: spec_lib.StageSpec, device: jax.Device) -> None:
  """Compiles the sum of two accumulators of a unit on a device."""
  where = jax.sharding.SingleDeviceSharding(device)
  put = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where)
  like = jax.tree.map(put, spec_lib.to_unit(unit.accumulator, unit))
  _add_two.lower(like, like).compile()


@jax.jit
def _add_two(a: spec_lib.Accumulator, b: spec_lib.Accumulator) -> spec_lib.Accumulator:
  return jax.tree.map(operator.add, a, b)


def compile_ties(engine: engine_lib.Engine, place: places.Place) -> None:
  """Compiles the sums of tied parameters in a place."""
  for group in engine.ties:
    copy = group[0]
    like = engine.specs[copy.stage].accumulator.grads[copy.layer][copy.param]
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
  """Returns the accumulators that change, by stage and share."""
  nodes, held, parts = engine.nodes, {}, {}
  for copy in group:
    if (node := row[copy.stage]) in nodes:
      key = (copy.stage, share)
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
      grads = held[copy.stage, share].grads
      total = ordered_sum.add([parts[node, c] for c in group])
      layer = {**grads[copy.layer], copy.param: total}
      held[copy.stage, share] = held[copy.stage, share].replace(grads={**grads, copy.layer: layer})
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


def find_channels(
    specs: Sequence[spec_lib.StageSpec],
    stage: base.StageId,
    owners: Sequence[Sequence[base.NodeId]],
    lines: engine_lib.Lines,
) -> list[channel_lib.Channel]:
  """Returns the channels of the sums of a stage's units.

  The nodes of each are those that computed the shares, one per share in order,
  then owners without a share.
  """
  holder = {share: row[stage] for row, own in lines for share in own}
  nodes = [holder[share] for share in sorted(holder)]
  others = sorted({row[stage] for row in owners}.difference(nodes))
  nodes = (*nodes, *others)
  units = range(len(specs[stage].units))
  return [channel_lib.Channel("sum", nodes, (stage, unit)) for unit in units]


def get_exchanged_sum(
    engine: engine_lib.Engine, channel: channel_lib.Channel
) -> ordered_sum.OrderedSum | None:
  """Returns a sum over several processes, compiled; None if it is within one.

  One of the nodes of the channel must be local.
  """
  # One node holds all shares.
  if engine.exchange is None or len({*channel.nodes}) == 1:
    return None
  num_computed = sum(len(own) for _, own in engine.lines)
  unit = _unit_of(engine, channel)
  (me,) = engine.nodes.keys() & channel.nodes  # With an exchange there is one.
  return ordered_sum.OrderedSum(
      channel.nodes[:num_computed],
      channel.nodes[num_computed:],
      me=me,
      like=spec_lib.to_unit(unit.accumulator, unit),
      device=jax.local_devices(backend="cpu")[0],
  )


def reduce(engine: engine_lib.Engine) -> None:
  """Sums the shares of each stage that is computed or owned here.

  The passes are over, so nodes drop their low-precision copies of weights.
  """
  totals = {}
  for node in engine.nodes.values():
    node.store.copies.clear()
  shares = sorted(share for _, own in engine.lines for share in own)
  for stage in base.stages(len(engine.specs)):
    channels = find_channels(engine.specs, stage, engine.owners, engine.lines)
    nodes, held = channels[0].nodes, {}
    # At the end of `nodes` there may be owners without a share.
    for index, (share, holder) in enumerate(zip(shares, nodes, strict=False)):
      if holder in engine.nodes:
        accumulator = engine.nodes[holder].store.accumulators[stage, share]
        held[index] = engine.results.tied.get((stage, share), accumulator)
    if engine.nodes.keys() & nodes:
      sums = [_add(engine, channel, held) for channel in channels]
      units = engine.specs[stage].units
      totals[stage] = {
          device: spec_lib.from_units([s[device] for s in sums], units) for device in sums[0]
      }
  engine.results.totals = totals


def _add(
    engine: engine_lib.Engine,
    channel: channel_lib.Channel,
    held: Mapping[int, spec_lib.Accumulator],
) -> dict[places.Place, spec_lib.Accumulator]:
  """Returns the sum of a unit, by place; `held` are the local accumulators."""
  unit = _unit_of(engine, channel)
  parts = {index: spec_lib.to_unit(a, unit) for index, a in held.items()}
  program = get_exchanged_sum(engine, channel)
  nodes: Sequence[base.NodeId]
  if program is not None:
    assert engine.exchange is not None
    total, nodes = program(engine.exchange, str(channel), parts), [program.me]
  else:
    total, nodes = _add_here(engine, channel, parts), channel.nodes
  totals = {}
  for place in dict.fromkeys(engine.nodes[node].device for node in nodes):
    where = places.of_state(place, total, unit.model.name)
    totals[place] = jax.device_put(total, where)
  return totals


def _add_here(
    engine: engine_lib.Engine,
    channel: channel_lib.Channel,
    parts: Mapping[int, spec_lib.Accumulator],
) -> spec_lib.Accumulator:
  """Returns the sum of all shares of a unit, all of which are local."""
  if len(parts) == 1:
    return parts[0]
  devices = list(dict.fromkeys(engine.devices[n] for n in channel.nodes))
  device = devices[channel.unit % len(devices)]
  total = jax.device_put(parts[0], device)
  for index in range(1, len(parts)):  # None is donated: they may be needed.
    total = _add_two(total, jax.device_put(parts[index], device))
  return total


def owned_totals(engine: engine_lib.Engine) -> dict[engine_lib.StageOnNode, spec_lib.Accumulator]:
  """Returns the sums by stage and local owner, where they are present.

  A node that became the owner after the sum has the sum that `refresh` sent it.
  """
  nodes, totals = engine.nodes, engine.results.totals
  return {
      (stage, number): totals[stage][nodes[number].device]
      for row in engine.owners
      for stage, number in base.by_stage(row)
      if number in nodes and nodes[number].device in totals[stage]
  }


def stage_norms(engine: engine_lib.Engine) -> dict[base.StageId, np.ndarray]:
  """Returns the squared gradient norm of each layer, by local stage.

  Blocks until they are computed.
  """
  norms = {}
  for stage, total in sorted(engine.results.totals.items()):
    if node := _local_owner(engine, stage):
      norms[stage] = node.norms(stage, total[node.device])
  return {
      stage: np.concatenate([np.asarray(n, np.float64) for n in parts])
      for stage, parts in norms.items()
  }


def loss(engine: engine_lib.Engine) -> np.ndarray:
  """Returns the sums of `layer.Loss.stack`; blocks."""
  stage = base.StageId(len(engine.specs) - 1)
  node = _local_owner(engine, stage)
  assert node is not None, "the last stage is not local"
  total = engine.results.totals[stage][node.device]
  return np.asarray(total.loss, np.float64)


def _unit_of(engine: engine_lib.Engine, channel: channel_lib.Channel) -> spec_lib.StageSpec:
  return engine.specs[channel.stage].units[channel.unit]


def _local_owner(engine: engine_lib.Engine, stage: base.StageId) -> node_lib.Node | None:
  nodes = engine.nodes
  local = (nodes[r[stage]] for r in engine.owners if r[stage] in nodes)
  return next(local, None)
