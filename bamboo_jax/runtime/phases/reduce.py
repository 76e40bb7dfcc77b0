"""Sums the gradients over all shares; norms and losses.

The sum of a share lies on the node that computed it. The sum over all shares of
a unit is one collective, see `wire.share_sum`; its result lies on the same
nodes.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.runtime.wire import share_sum
from bamboo_jax.schedule import channel as channel_lib


def find_channels(
    specs: Sequence[spec_lib.StageSpec],
    stage: int,
    owners: Sequence[Sequence[int]],
    lines: engine_lib.Lines,
) -> list[channel_lib.Channel]:
  """Returns the channels of the sums of a stage's units.

  Their nodes are one for each computed share, then the owners that computed
  none.
  """
  holder = {share: row[stage] for row, own in lines for share in own}
  nodes = [holder[share] for share in sorted(holder)]
  others = sorted({row[stage] for row in owners}.difference(nodes))
  nodes = (*nodes, *others)
  units = range(len(specs[stage].units))
  return [channel_lib.Channel("sum", nodes, (stage, unit)) for unit in units]


def get_sum(
    engine: engine_lib.Engine, channel: channel_lib.Channel
) -> share_sum.ShareSum | ordered_sum.OrderedSum:
  """Returns the program of a sum, compiled; one of its nodes must be local."""
  num_computed = sum(len(own) for _, own in engine.lines)
  if _is_exchanged(engine, channel):
    unit = _unit_of(engine, channel)
    (me,) = engine.nodes.keys() & channel.nodes
    return ordered_sum.OrderedSum(
        channel.nodes[:num_computed],
        channel.nodes[num_computed:],
        me=me,
        like=spec_lib.to_unit(unit.accumulator, unit),
        device=jax.local_devices(backend="cpu")[0],
    )
  devices = [engine.devices[node] for node in channel.nodes]
  return engine.programs.get_sum(
      _unit_of(engine, channel), devices[:num_computed], devices[num_computed:]
  )


def reduce(engine: engine_lib.Engine) -> None:
  """Sums the shares of each stage that is computed or owned here.

  The passes are over, so nodes drop their low-precision copies of weights.
  """
  totals = {}
  for node in engine.nodes.values():
    node.store.copies.clear()
  shares = sorted(share for _, own in engine.lines for share in own)
  for stage in range(len(engine.specs)):
    channels = find_channels(engine.specs, stage, engine.owners, engine.lines)
    nodes, held = channels[0].nodes, {}
    for place, (share, holder) in enumerate(zip(shares, nodes, strict=False)):
      if holder in engine.nodes:
        accumulator = engine.nodes[holder].store.accumulators[stage, share]
        held[place] = engine.results.tied.get((stage, share), accumulator)
    if engine.nodes.keys() & nodes:
      sums = [_add(engine, channel, held) for channel in channels]
      units = engine.specs[stage].units
      totals[stage] = {
          device: spec_lib.from_units([s[device] for s in sums], units)
          for device in sums[0]
      }
  engine.results.totals = totals


def _add(
    engine: engine_lib.Engine,
    channel: channel_lib.Channel,
    held: Mapping[int, spec_lib.Accumulator],
) -> dict[places.Place, spec_lib.Accumulator]:
  program, unit = get_sum(engine, channel), _unit_of(engine, channel)
  held = {share: spec_lib.to_unit(a, unit) for share, a in held.items()}
  if isinstance(program, ordered_sum.OrderedSum):
    total = program(engine.exchange, str(channel), held)
    place = engine.find_compute(program.me)
    where = places.of_state(place, total, unit.model.name)
    return {place: jax.device_put(total, where)}
  if program.program is None:
    return {engine.find_compute(channel.nodes[0]): held[0]}
  sums = program(held)
  totals = {}
  for device, total in sums.items():
    place = devices_lib.compute_of(device, engine.mesh)
    where = places.of_state(place, total, unit.model.name)
    totals[place] = jax.device_put(total, where)
  return totals


def owned_totals(
    engine: engine_lib.Engine,
) -> dict[tuple[int, int], spec_lib.Accumulator]:
  """Returns the sums by stage and local owner, where they are present.

  A node that became the owner after the sum has the one from `refresh`.
  """
  nodes, totals = engine.nodes, engine.results.totals
  return {
      (stage, number): totals[stage][nodes[number].device]
      for row in engine.owners
      for stage, number in enumerate(row)
      if number in nodes and nodes[number].device in totals[stage]
  }


def stage_norms(engine: engine_lib.Engine) -> dict[int, np.ndarray]:
  """Returns the squared gradient norm of each layer, by local stage.

  Blocks until they are computed.
  """
  norms = {}
  for stage, total in sorted(engine.results.totals.items()):
    if node := _local_owner(engine, stage):
      norms[stage] = node.programs[stage].norms(total[node.device])
  return {
      stage: np.concatenate([np.asarray(n, np.float64) for n in parts])
      for stage, parts in norms.items()
  }


def loss(engine: engine_lib.Engine) -> np.ndarray:
  """Returns the sum of the losses and their weight; blocks."""
  stage = len(engine.specs) - 1
  device = _local_owner(engine, stage).device
  return np.asarray(engine.results.totals[stage][device].loss, np.float64)


def _is_exchanged(
    engine: engine_lib.Engine, channel: channel_lib.Channel
) -> bool:
  return engine.exchange is not None and len({*channel.nodes}) > 1


def _unit_of(
    engine: engine_lib.Engine, channel: channel_lib.Channel
) -> spec_lib.StageSpec:
  stage, unit = channel.key
  return engine.specs[stage].units[unit]


def _local_owner(engine: engine_lib.Engine, stage: int) -> node_lib.Node | None:
  nodes = engine.nodes
  local = (nodes[r[stage]] for r in engine.owners if r[stage] in nodes)
  return next(local, None)
