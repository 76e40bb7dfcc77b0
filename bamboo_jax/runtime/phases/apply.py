"""Turns final gradients into the next state; local, after the commit."""

import jax
import numpy as np

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import places
from bamboo_jax.runtime.phases import reduce
from bamboo_jax.runtime.stage import spec as spec_lib


def apply(engine: engine_lib.Engine, scale: float) -> None:
  """Updates all stages and replicas of local nodes; donates their state."""
  totals = {**reduce.owned_totals(engine), **engine.results.received}
  proposed = engine.results.proposed
  for number, node in engine.nodes.items():
    for stage in list(node.state):
      state = proposed.pop((stage, number), None)
      if state is None:
        state = update_stage(
            engine, node, stage, totals[stage, number], scale=scale
        )
      node.state[stage] = state
      is_replica = any(s.get(stage) == number for s in engine.shadows)
      if is_replica and engine.replicas.slots == "host":
        # The update needs them on the device.
        node.state[stage] = node.with_slots(stage, "pinned_host")


def update_stage(
    engine: engine_lib.Engine,
    node: node_lib.Node,
    stage: int,
    total: spec_lib.Accumulator,
    *,
    scale: float,
    donate: bool = True,
) -> spec_lib.StageState:
  """Returns the state of a stage after the step.

  Args:
    total: Final gradients, multiplied by `scale` here.
    donate: Whether the former state is donated.
  """
  state = node.with_slots(stage, "device")
  scalars = (np.float32(scale), np.float32(engine.num_microbatches))
  return node.programs[stage].update(
      state,
      total,
      *jax.device_put(scalars, places.whole(node.device)),
      donate=donate,
  )
