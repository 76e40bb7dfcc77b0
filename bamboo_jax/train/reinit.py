"""Moves a worker to another coordination service, in the process that it is.

It is done between two steps, when nothing is under way between nodes. All
arrays are lost, so state stays in host memory meanwhile; programs are found
again. Nobody waits for anybody else: who lags is waited for afterwards, by
whoever needs it.

As long as the service lives, nodes also connect ahead of time with those they
will need if one of the others dies, as the service may be gone by then.
"""

from collections.abc import Iterable
import time
from typing import Any

from absl import logging
import jax
import numpy as np

from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster.sessions import eras
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import coordination
from bamboo_jax.runtime.wire import transfer_log
from bamboo_jax.train import ahead as ahead_lib


def devices_of(era: eras.Era) -> dict[int, jax.Device]:
  """Returns the device of each node that has a slot, by number."""
  by_slot = coordination.devices_by_slot()
  return {n: by_slot[slot] for slot, n in enumerate(era.numbers, start=1)}


class Mover:
  """Keeps a worker in the era of its view.

  Args:
    engine: Has the local node.
    client: Knows the eras.
    log: All transfers with other processes pass it.
    ahead: Compiles in the background.
    era: The era that this process is in.
    host: Where other nodes reach this one.
    preconnects: Whether to connect ahead of time.
  """

  def __init__(
      self,
      engine: engine_lib.Engine,
      client: client_lib.Client,
      log: transfer_log.TransferLog,
      ahead: ahead_lib.Ahead,
      *,
      era: int,
      host: str,
      preconnects: bool,
  ) -> None:
    self._engine = engine
    self._client = client
    self._log = log
    self._ahead = ahead
    self._host = host
    self._preconnects = preconnects
    self._era = era
    self._connected: tuple[int, ...] = ()
    log.enter_era(era)

  def move(self, number: int) -> None:
    """Moves to an era, unless this process is in it, with the state it has.

    Raises:
      ValueError: It has no slot for this node.
    """
    if number == self._era:
      return
    begin_secs = time.perf_counter()
    era, me = self._client.wait_era(number), self._client.number
    slot = eras.slot_of(era, me)
    if slot is None:
      raise ValueError(f"Era {number} has no slot for node {me}.")
    self._ahead.wait()
    states = self._take_states()
    self._engine.reset({})
    coordination.disconnect()
    coordination.connect(
        era.address,
        slot=slot,
        num_slots=era.num_slots,
        number=me,
        host=self._host,
    )
    engine = self._engine
    engine.reset(devices_of(era))
    engine.set_pipelines(engine.owners, engine.shadows, engine.shares)
    for stage, state in states.items():
      engine.load_programs(me, stage)
      node = engine.nodes[me]
      node.state[stage] = jax.device_put(state, node.device, may_alias=False)
    self._log.enter_era(number)
    self._era = number
    self._client.send("era", number=number)
    self._ahead.compile()
    secs = time.perf_counter() - begin_secs
    logging.info("Moved to era %d in %.2f s.", number, secs)

  def say(self, version: int) -> list[int]:
    """Returns what this node is ready to connect, for the vote.

    Args:
      version: Of the layout.
    """
    return [self._era, version if self._ahead.is_idle else -1]

  def preconnect(self, said: Iterable[Any], version: int) -> None:
    """Connects nodes that will need each other, once all are ready to.

    All nodes call it at once, between two steps.

    Args:
      said: What `say` returned, of all nodes.
      version: Of the layout.

    Raises:
      Exception: Somebody is gone, as in a transfer.
    """
    view = self._client.adopted.number
    ready = [self._era, version]
    if not self._preconnects or any(s != ready for s in said):
      return
    if self._connected != (view, *ready):
      begin_secs = time.perf_counter()
      count = compile_ahead.preconnect(self._engine)
      self._connected = (view, *ready)
      secs = time.perf_counter() - begin_secs
      logging.info("Connected %d groups ahead in %.3f s.", count, secs)

  def _take_states(self) -> dict[int, spec_lib.StageState]:
    """Returns copies in host memory of what the local node has, by stage."""
    node = self._engine.nodes.get(self._client.number)
    states = node.state if node else {}
    # `np.asarray` would share memory, and keep all of JAX alive with it.
    return {stage: jax.tree.map(np.array, s) for stage, s in states.items()}
