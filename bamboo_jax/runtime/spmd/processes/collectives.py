"""The part of this process in programs over several processes."""

from collections.abc import Callable, Collection, Mapping

import jax

from bamboo_jax import base
from bamboo_jax.base import threads
from bamboo_jax.runtime import accelerator
from bamboo_jax.runtime.spmd.processes import (
    black_holes,
    coordination,
    rendezvous as rendezvous_lib,
    settle as settle_lib,
    transfer_log,
)
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib


class ProcessCollectives:
  """An `executor.Collectives`.

  Attributes:
    log: Records all transfers.
    devices: After `start`, the devices of all nodes that may ever exist.
  """

  def __init__(
      self,
      number: base.NodeId,
      exchange: transport_lib.Transport,
      *,
      is_lost: Callable[[base.NodeId], bool],
  ) -> None:
    """Starts nothing yet; arguments are those of `rendezvous.Rendezvous`."""
    rendezvous = rendezvous_lib.Rendezvous(number, exchange, is_lost=is_lost)
    self.log = transfer_log.TransferLog(rendezvous.meet)
    self.devices: Mapping[base.NodeId, jax.Device] = {}
    self._number = number

  def start(self, host: str) -> Mapping[base.NodeId, jax.Device]:
    """See `executor.Collectives`."""
    threads.call_beside(black_holes.watch, self.log.find_stuck, name="links")
    coordination.connect(self._number, host=host)
    accelerator.check_executor("spmd", jax.default_backend())
    self.devices = coordination.devices_by_node()
    return {self._number: self.devices[self._number]}

  def attach(self, answer: Callable[[channel_lib.Channel], None]) -> None:
    """Sets the function that completes a segment begun by other processes.

    It blocks. Called once, before `settle`.
    """
    self._answer = answer

  def begun(self) -> channel_lib.Begun:
    """See `executor.Collectives`."""
    return self.log.begun()

  def stop(self, view: base.ViewId, *, alive: Collection[base.NodeId] | None = None) -> None:
    """See `executor.Collectives`."""
    self.log.stop(view, alive=alive)

  def settle(self, begun: Mapping[base.NodeId, channel_lib.Begun], *, view: base.ViewId) -> None:
    """See `executor.Collectives`."""
    self.log.answer_for(view)
    for channel in settle_lib.find_unanswered(begun)[self._number]:
      self._answer(channel)

  def settled(self, view: base.ViewId, steps: base.StepId) -> None:
    """See `executor.Collectives`."""
    self.log.settled(view, steps)
