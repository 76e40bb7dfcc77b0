"""Sums gradients: of tied parameters, then over all shares; norms and losses.

Each layer that uses a tied parameter keeps its own copy, so that any partition
can hold it. Copies start equal, and each gets the same gradient: the sum over all
layers that use it, added in model order, on the nodes that compute a share of the
batch. Programs of different layers may round its update differently in the last
bit, but alike on any node. It lies beside the accumulators, which do not
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

from collections.abc import Iterable, Mapping, Sequence
import functools
import itertools

import jax

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib, node as node_lib, places
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.schedule import channel as channel_lib


def tie(engine: engine_lib.Engine) -> None:
  """Sums the gradients of tied parameters, beside the accumulators."""
  local, model = engine.nodes, engine.specs[0].model.name
  for node in local.values():
    node.store.tied = {}
  # All nodes walk one order, so none waits in a circle.
  every = (key for row, own in engine.lines for key in itertools.product([row], own, engine.ties))
  for row, share, group in every:
    nodes, parts = tuple(row[copy.stage] for copy in group), {}
    for i, (number, copy) in enumerate(zip(nodes, group, strict=True)):
      if number in local:
        # Another group may have changed it before.
        held = local[number].store.find_sum(copy.unit, share)
        parts[i] = held.grads[copy.layer][copy.param]
    if parts:
      like = engine.units[group[0].unit].accumulator.grads[group[0].layer][group[0].param]
      channel = channel_lib.Channel("tie", nodes, group[0])
      total = _add_up(engine, channel, parts, num_parts=len(group), like=like)
    for i in parts:
      copy, node = group[i], local[nodes[i]]
      held, value = node.store.find_sum(copy.unit, share), {copy.param: total}
      value = jax.device_put(value, places.of_state(node.device, value, model))
      grads = [*held.grads]
      grads[copy.layer] = {**grads[copy.layer], **value}
      node.store.tied[copy.unit, share] = held.replace(grads=tuple(grads))


def find_nodes(
    stage: base.StageId, owners: Iterable[Sequence[base.NodeId]], lines: engine_lib.Lines
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
  local = engine.nodes
  for node in local.values():
    node.store.copies.clear()
    node.store.totals = {}
  shares = sorted(share for _, own in engine.lines for share in own)
  for stage, spec in base.by_stage(engine.specs):
    nodes = find_nodes(stage, engine.owners, engine.lines)
    here = {number: local[number].device for number in nodes if number in local}
    for index, unit in enumerate(spec.units if here else ()):
      parts = {}  # By index; at the end of `nodes` there may be owners without a share.
      for i, (share, holder) in enumerate(zip(shares, nodes, strict=False)):
        if holder in local:
          parts[i] = local[holder].store.find_sum(unit.first, share)
      channel, like = channel_lib.Channel("sum", nodes, (unit.first,)), unit.accumulator
      total = _add_up(engine, channel, parts, num_parts=len(shares), like=like, turn=index)
      placed = {  # Once for all nodes of a place.
          place: jax.device_put(total, places.of_state(place, total, unit.model.name))
          for place in dict.fromkeys(here.values())
      }
      for number, place in here.items():
        local[number].store.totals[unit.first] = placed[place]


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


def stage_norms(engine: engine_lib.Engine) -> dict[int, tuple[float, ...]]:
  """Returns the squared gradient norm of each layer, by stage of a local owner; blocks."""
  norms: dict[base.StageId, list[jax.Array]] = {}
  for stage, _ in base.by_stage(engine.specs):
    if node := _local_owner(engine, stage):
      norms[stage] = [
          programs.norms(node.store.totals[unit.first]) for unit, programs in node.units[stage]
      ]
  return {
      stage: tuple(norm for part in parts for norm in part.tolist())
      for stage, parts in norms.items()
  }


def loss(engine: engine_lib.Engine) -> tuple[float, ...] | None:
  """Returns the sums of `layer.Loss.stack`, None without a local owner of the loss; blocks."""
  node = _local_owner(engine, base.StageId(len(engine.specs) - 1))
  total = None if node is None else node.store.totals[max(engine.units)].loss
  return None if total is None else tuple(total.tolist())


def _local_owner(engine: engine_lib.Engine, stage: base.StageId) -> node_lib.Node | None:
  nodes = engine.nodes
  local = (nodes[r[stage]] for r in engine.owners if r[stage] in nodes)
  return next(local, None)
