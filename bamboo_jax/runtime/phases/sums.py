"""The sums of gradients over shares, by the nodes that hold them."""

from collections.abc import Mapping, Sequence

import jax

from bamboo_jax.cluster import drain
from bamboo_jax.runtime.phases import reduce as reduce_lib
from bamboo_jax.runtime.stage import programs as stage_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import gate as gate_lib

_KIND = "sum"


class Sums:
  """One sum for each stage and its owners, compiled when first asked for.

  Args:
    specs: One entry per stage.
    devices: The device of each node.
    cache: Has the programs.
    gate: Is told of sums with other processes.
  """

  def __init__(
      self,
      specs: Sequence[spec_lib.StageSpec],
      *,
      devices: Mapping[int, jax.Device],
      cache: stage_lib.ProgramCache,
      gate: gate_lib.Gate | None = None,
  ) -> None:
    self._specs = specs
    self._devices = devices
    self._cache = cache
    self._gate = gate

  def prepare(self, stage: int, holders: Sequence[int]) -> reduce_lib.ShareSum:
    """Returns the sum of a stage, compiled.

    Args:
      stage: The stage.
      holders: The node that holds each share of it; one of them is local.
    """
    devices = [self._devices[node] for node in holders]
    return self._cache.get_sum(self._specs[stage], devices)

  def add(
      self,
      stage: int,
      holders: Sequence[int],
      held: Mapping[int, spec_lib.Accumulator],
  ) -> dict[jax.Device, spec_lib.Accumulator]:
    """Returns the sum of a stage on each local device that holds shares.

    Args:
      stage: The stage.
      holders: The node that holds each share.
      held: Accumulators of the shares that this process holds, by share.
    """
    program = self.prepare(stage, holders)
    processes = {device.process_index for device in program.devices}
    if self._gate is None or len(processes) == 1:
      return program(held)
    channel = drain.make_channel(f"{_KIND}/{stage}", holders)
    self._gate.begin(channel)
    return self._gate.run(channel, lambda: program(held))

  def follow(self, channel: str) -> None:
    """Ends a sum that another process has begun; blocks."""
    stage = int(channel.partition("@")[0].removeprefix(f"{_KIND}/"))
    holders = drain.ends_of(channel)
    program = self.prepare(stage, holders)
    me = jax.process_index()
    held = {}
    for share, node in enumerate(holders):
      device = self._devices[node]
      if device.process_index == me:
        held[share] = self._cache.get(self._specs[stage], device).zeros()
    self._gate.follow(channel)
    jax.block_until_ready(self._gate.run(channel, lambda: program(held)))
