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

from collections.abc import Sequence
import functools
import itertools

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib, node as node_lib, places
from bamboo_jax.runtime.stage import array_store as store_lib, spec as spec_lib
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.schedule import channel as channel_lib


def tie(engine: engine_lib.Engine) -> None:
  """Sums the gradients of tied parameters, beside the accumulators."""
  tied: dict[store_lib.Sum, spec_lib.Accumulator] = {}
  nodes, links, model = engine.nodes, engine.links, engine.specs[0].model.name
  every = (key for row, own in engine.lines for key in itertools.product([row], own, engine.ties))
  for row, share, group in every:
    holders, parts = sorted({row[copy.stage] for copy in group}), {}
    here = [copy for copy in group if row[copy.stage] in nodes]
    for copy in here:
      key = (copy.unit, share)
      # Another group may have changed it before.
      tied.setdefault(key, nodes[row[copy.stage]].store.accumulators[key])
      parts[row[copy.stage], copy] = tied[key].grads[copy.layer][copy.param]
    # All nodes walk one order, so none waits in a circle.
    for copy, to in itertools.product(group, holders):
      source = row[copy.stage]
      if source == to or not nodes.keys() & {source, to}:
        continue
      channel = channel_lib.Channel("tie", (source, to), copy)
      find_target = lambda place, value, param=copy.param: (
          places.of_state(place, {param: value}, model)[param]
      )
      if source in nodes:
        links.send(channel, parts[source, copy], find_target)
      if to in nodes:
        like = engine.units[copy.unit].accumulator.grads[copy.layer][copy.param]
        parts[to, copy] = links.receive(channel, like, find_target)
    for copy in here:
      held = tied[copy.unit, share]
      grads = [*held.grads]
      total = ordered_sum.add([parts[row[copy.stage], c] for c in group])
      grads[copy.layer] = {**grads[copy.layer], copy.param: total}
      tied[copy.unit, share] = held.replace(grads=tuple(grads))
  engine.results.tied = tied


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
  totals, tied, local = {}, engine.results.tied, engine.nodes
  for node in local.values():
    node.store.copies.clear()
  shares = sorted(share for _, own in engine.lines for share in own)
  for stage, spec in base.by_stage(engine.specs):
    nodes = find_nodes(stage, engine.owners, engine.lines)
    here = dict.fromkeys(local[node].device for node in nodes if node in local)
    for index, unit in enumerate(spec.units if here else ()):
      parts = {}  # By index; at the end of `nodes` there may be owners without a share.
      for i, (share, holder) in enumerate(zip(shares, nodes, strict=False)):
        if holder in local:
          key = (unit.first, share)
          parts[i] = tied.get(key) or local[holder].store.accumulators[key]
      if engine.exchange is None or len({*nodes}) == 1:  # One node holds all shares.
        devices = list(dict.fromkeys(engine.devices[node] for node in nodes))
        total = add_here([*parts.values()], devices[index % len(devices)])
      else:
        total = ordered_sum.ordered_sum(
            engine.exchange,
            str(channel_lib.Channel("sum", nodes, (unit.first,))),
            parts,
            nodes=nodes,
            num_shares=len(shares),
            like=unit.accumulator,
            device=jax.local_devices(backend="cpu")[0],
        )
      where = {place: places.of_state(place, total, unit.model.name) for place in here}
      totals[unit.first] = {place: jax.device_put(total, to) for place, to in where.items()}
  engine.results.totals = totals


def add_here(parts: Sequence[spec_lib.Accumulator], device: jax.Device) -> spec_lib.Accumulator:
  """Returns the sum of all shares of a unit, all of which are local."""
  # None is donated: they may be needed.
  add = lambda total, part: ordered_sum.add(jax.device_put([total, part], device))
  return functools.reduce(add, parts)


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
      find = lambda unit, place=node.device: engine.programs.get(unit, place).norms
      norms[stage] = [
          find(unit)(engine.results.totals[unit.first][node.device]) for unit in spec.units
      ]
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
