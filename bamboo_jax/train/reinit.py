"""Moves a worker to another coordination service, in the process that it is.

It is done between two steps, when nothing is under way between nodes. All
arrays are lost, so state stays in host memory meanwhile; programs are found
again. Nobody waits for anybody else: who lags is waited for afterwards, by
whoever needs it.
"""

from collections.abc import Mapping

import jax
import numpy as np

from bamboo_jax.cluster import eras
from bamboo_jax.runtime import coordination
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import spec as spec_lib


def devices_of(era: eras.Era) -> dict[int, jax.Device]:
  """Returns the device of each node that has a slot, by number."""
  by_slot = coordination.devices_by_slot()
  return {n: by_slot[slot] for slot, n in enumerate(era.numbers, start=1)}


def take_states(
    engine: engine_lib.Engine, number: int
) -> dict[int, spec_lib.StageState]:
  """Returns copies in host memory of what a local node owns or replicates.

  They are by stage, and share nothing with arrays of the engine.
  """
  node = engine.nodes.get(number)
  states = {} if node is None else node.state
  # `np.asarray` would share memory, and keep all of JAX alive with it.
  return {stage: jax.tree.map(np.array, s) for stage, s in states.items()}


def move(
    era: eras.Era, *, number: int, host: str = "127.0.0.1"
) -> dict[int, jax.Device]:
  """Moves this process to an era; returns what `devices_of` does.

  Nothing may refer to arrays, devices or programs from before.

  Args:
    era: Where to move.
    number: Number of this node, which must have a slot there.
    host: Where other nodes reach this one.

  Raises:
    ValueError: There is no slot for it.
  """
  slot = eras.slot_of(era, number)
  if slot is None:
    raise ValueError(f"Era {era.number} has no slot for node {number}.")
  coordination.reconnect(
      era.address,
      slot=slot,
      num_slots=era.num_slots,
      number=number,
      host=host,
  )
  return devices_of(era)


def give_states(
    engine: engine_lib.Engine,
    number: int,
    states: Mapping[int, spec_lib.StageState],
) -> None:
  """Gives a local node what `take_states` took from it; sets its roles before.

  It copies, so the arrays may be donated.
  """
  for stage, state in states.items():
    engine.hold(number, stage)
    node = engine.nodes[number]
    node.state[stage] = jax.device_put(state, node.device, may_alias=False)
