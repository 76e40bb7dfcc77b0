"""One engine per mode, in the process of one stage.

They share compiled programs and have a state each.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json

import jax
import numpy as np

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import replicas as replicas_lib
from bamboo_jax.runtime.stage import programs as stage_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.train import digest
from launch.redundancy import predict


@dataclasses.dataclass(frozen=True)
class Mode:
  """One mode on the node of this process.

  Attributes:
    plan: Rows and roles.
    engine: Has the node.
    order: The rows as one thread runs them.
  """

  plan: predict.ModePlan
  engine: engine_lib.Engine
  order: Sequence[tuple[int, instruction_lib.Instruction]]

  @property
  def node(self) -> node_lib.Node:
    """The node of this process."""
    (node,) = self.engine.nodes.values()
    return node

  def replica_bytes(self) -> int:
    """Returns the size of the replicas on this node."""
    stages = self.plan.roles.replicas_of(self.node.node)
    states = [self.node.state[stage] for stage in stages]
    return sum(a.nbytes for a in jax.tree.leaves(states))

  def digests(self) -> dict[int, str]:
    """Returns the hash of the state of each stage that this node holds."""
    return {
        stage: digest.state_sha256(
            spec_lib.split_layers(state),
            [layer.name for layer in self.engine.specs[stage].layers],
            samples_seen=0,
        )
        for stage, state in sorted(self.node.state.items())
    }

  def sums(self) -> dict[int, str]:
    """Returns what tells the sums of the stages of this node, to the bit."""
    (owners,) = self.engine.owners
    stages = [s for s, node in enumerate(owners) if node == self.node.node]
    counts = [len(self.engine.specs[stage].layers) for stage in stages]
    norms = np.split(self.engine.norms(), np.cumsum(counts)[:-1])
    return {
        stage: json.dumps([value.hex() for value in values.tolist()])
        for stage, values in zip(stages, norms, strict=True)
    }


def make_modes(
    plans: Mapping[str, predict.ModePlan],
    specs: Sequence[spec_lib.StageSpec],
    *,
    devices: Mapping[int, jax.Device],
    options: replicas_lib.ReplicaOptions,
) -> dict[str, Mode]:
  """Returns all modes, compiled, in the state before the first step.

  All processes must call this at the same time.

  Args:
    plans: The modes by name.
    specs: One entry per stage.
    devices: The device of each node.
    options: How replicas are held and refreshed.
  """
  layers = {}
  for spec in specs:
    layers |= spec_lib.init_layers(spec)
  cache = stage_lib.ProgramCache()
  made = {}
  for name, plan in plans.items():
    roles = plan.roles
    engine = engine_lib.Engine(
        specs,
        owners=[roles.owners],
        devices=devices,
        num_shares=1,
        keep=bool(roles.shadows),
        replicas=options,
        cache=cache,
    )
    engine.set_roles(0, owners=roles.owners, shadows=roles.shadows)
    engine.compile(evaluate=False)
    engine.set_state(layers)
    order = linearize.linearize([plan.whole.timeline])
    made[name] = Mode(plan, engine, order)
  return made
