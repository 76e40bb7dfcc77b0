"""The sums of gradients over shares, by the nodes that hold them."""

from collections.abc import Mapping, Sequence

import jax

from bamboo_jax.cluster import drain
from bamboo_jax.runtime import gate as gate_lib
from bamboo_jax.runtime import reduce as reduce_lib
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.runtime import stage as stage_lib

_KIND = "sum"


class Sums:
  """One sum for each stage and its owners, compiled when first asked for.

  Args:
    specs: One entry per stage.
    devices: The device of each node.
    num_shares: Number of shares, which pipelines take evenly, in order.
    cache: Has the programs.
    gate: Is told of sums with other processes.
  """

  def __init__(
      self,
      specs: Sequence[spec_lib.StageSpec],
      *,
      devices: Mapping[int, jax.Device],
      num_shares: int,
      cache: stage_lib.ProgramCache,
      gate: gate_lib.Gate | None = None,
  ) -> None:
    self._specs = specs
    self._devices = devices
    self._num_shares = num_shares
    self._cache = cache
    self._gate = gate

  def holders(self, owners: Sequence[int]) -> list[int]:
    """Returns the node that holds each share of a stage.

    Args:
      owners: The node that owns the stage in each pipeline.
    """
    each = self._num_shares // len(owners)
    return [node for node in owners for _ in range(each)]

  def shares(self, pipeline: int, num_pipelines: int) -> range:
    """Returns the shares that one of so many pipelines computes."""
    each = self._num_shares // num_pipelines
    return range(pipeline * each, (pipeline + 1) * each)

  def prepare(self, stage: int, owners: Sequence[int]) -> reduce_lib.ShareSum:
    """Returns the sum of a stage, compiled; one of its owners is local."""
    devices = [self._devices[node] for node in self.holders(owners)]
    return self._cache.get_sum(self._specs[stage], devices)

  def add(
      self,
      stage: int,
      owners: Sequence[int],
      held: Mapping[int, spec_lib.Accumulator],
  ) -> dict[jax.Device, spec_lib.Accumulator]:
    """Returns the sum of a stage on each local device that holds shares.

    Args:
      stage: The stage.
      owners: The node that owns it in each pipeline.
      held: Accumulators of the shares that this process holds, by share.
    """
    program = self.prepare(stage, owners)
    processes = {device.process_index for device in program.devices}
    if self._gate is not None and len(processes) > 1:
      self._gate.begin(drain.make_channel(f"{_KIND}/{stage}", owners))
    return program(held)

  def follow(self, channel: str) -> None:
    """Ends a sum that another process has begun; blocks."""
    stage = int(channel.partition("@")[0].removeprefix(f"{_KIND}/"))
    owners = drain.ends_of(channel)
    program = self.prepare(stage, owners)
    me = jax.process_index()
    held = {}
    for share, node in enumerate(self.holders(owners)):
      device = self._devices[node]
      if device.process_index == me:
        held[share] = self._cache.get(self._specs[stage], device).zeros()
    self._gate.follow(channel)
    jax.block_until_ready(program(held))
