"""Sums gradients: of tied parameters, then over all shares; norms and losses.

Each layer that uses a tied parameter keeps its own copy, so that any partition
can hold it. Copies start equal and stay equal because each gets the same
gradient: the sum over all layers that use it, added in model order, on the nodes
that compute a share of the batch. It lies beside the accumulators, which do not
change, so after a death the phase can be repeated.

The sum of a share lies on the node that computed it, and the sum over all
shares on all nodes that hold one. Shares are added from left to right in the
order of their index, so the bits do not depend on the nodes that computed them.

Between processes both are `wire.ordered_sum`. Within one, each unit is added on
one device, and units take the devices in turn:

  device 0   a0 a1    a0 + b0 (b0 was copied here)    a0+b0, a1+b1
  device 1   b0 b1    a1 + b1 (a1 was copied here)    a0+b0, a1+b1

With one share on each of D devices, a device sends 2 (D - 1) / D gradients.
"""

from collections.abc import Mapping
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
  local, model = engine.nodes, engine.specs[0].model.name
  # All nodes walk one order, so none waits in a circle.
  every = (key for row, own in engine.lines for key in itertools.product([row], own, engine.ties))
  for row, share, group in every:
    nodes, parts = tuple(row[copy.stage] for copy in group), {}
    for i, (node, copy) in enumerate(zip(nodes, group, strict=True)):
      if node in local:
        key = (copy.unit, share)
        # Another group may have changed it before.
        held = tied.setdefault(key, local[node].store.accumulators[key])
        parts[i] = held.grads[copy.layer][copy.param]
    if parts:
      like = engine.units[group[0].unit].accumulator.grads[group[0].layer][group[0].param]
      channel = channel_lib.Channel("tie", nodes, group[0])
      total = _add_up(engine, channel, parts, num_parts=len(group), like=like)
    for i in parts:
      copy, held = group[i], tied[group[i].unit, share]
      value, grads = {copy.param: total}, [*held.grads]
      where = places.of_state(local[nodes[i]].device, value, model)
      grads[copy.layer] = {**grads[copy.layer], **jax.device_put(value, where)}
      tied[copy.unit, share] = held.replace(grads=tuple(grads))
  engine.tied = tied


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
  totals: dict[engine_lib.UnitOnNode, spec_lib.Accumulator] = {}
  tied, local = engine.tied, engine.nodes
  for node in local.values():
    node.store.copies.clear()
  shares = sorted(share for _, own in engine.lines for share in own)
  for stage, spec in base.by_stage(engine.specs):
    nodes = find_nodes(stage, engine.owners, engine.lines)
    here = {node: local[node].device for node in nodes if node in local}
    for index, unit in enumerate(spec.units if here else ()):
      parts = {}  # By index; at the end of `nodes` there may be owners without a share.
      for i, (share, holder) in enumerate(zip(shares, nodes, strict=False)):
        if holder in local:
          key = (unit.first, share)
          parts[i] = tied.get(key) or local[holder].store.accumulators[key]
      channel, like = channel_lib.Channel("sum", nodes, (unit.first,)), unit.accumulator
      total = _add_up(engine, channel, parts, num_parts=len(shares), like=like, turn=index)
      placed = {  # Once for all nodes of a place.
          place: jax.device_put(total, places.of_state(place, total, unit.model.name))
          for place in dict.fromkeys(here.values())
      }
      totals |= {(unit.first, node): placed[place] for node, place in here.items()}
  engine.totals = totals


def _add_up(
    engine: engine_lib.Engine,
    channel: channel_lib.Channel,
    parts: Mapping[int, base.PyTree],
    *,
    num_parts: int,
    like: base.PyTree,
    turn: int = 0,
) -> base.PyTree:
  """Returns a sum, on one device; all nodes of the channel call it, in one order.

  Args:
    parts: Those of local nodes, by index. None is donated: they may be needed.
    turn: Chooses the device if all parts are local.
  """
  if engine.exchange is None or len({*channel.nodes}) == 1:  # One node holds all parts.
    devices = engine.adders(channel.nodes)
    put = functools.partial(jax.device_put, device=devices[turn % len(devices)])
    return functools.reduce(lambda total, part: ordered_sum.add(put([total, part])), parts.values())
  return ordered_sum.ordered_sum(engine.exchange, channel, parts, num_shares=num_parts, like=like)


def stage_norms(engine: engine_lib.Engine) -> dict[base.StageId, np.ndarray]:
  """Returns the squared gradient norm of each layer, by stage of a local owner.

  Blocks until they are computed.
  """
  norms: dict[base.StageId, list[jax.Array]] = {}
  for stage, _ in base.by_stage(engine.specs):
    if node := _local_owner(engine, stage):
      norms[stage] = [
          programs.norms(engine.totals[unit.first, node.node])
          for unit, programs in node.units[stage]
      ]
  return {
      stage: np.concatenate([np.asarray(n, np.float64) for n in parts])
      for stage, parts in norms.items()
  }


def loss(engine: engine_lib.Engine) -> np.ndarray:
  """Returns the sums of `layer.Loss.stack`; blocks."""
  node = _local_owner(engine, base.StageId(len(engine.specs) - 1))
  assert node is not None, "the last stage is not local"
  return np.asarray(engine.totals[max(engine.units), node.node].loss, np.float64)


def _local_owner(engine: engine_lib.Engine, stage: base.StageId) -> node_lib.Node | None:
  nodes = engine.nodes
  local = (nodes[r[stage]] for r in engine.owners if r[stage] in nodes)
  return next(local, None)
