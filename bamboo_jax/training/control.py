"""A negative control: the last step of a run without one share of its batch.

Equal hashes of two runs prove something only if a fault would have changed
them. So after the last step, from the state before it and the gradients that
the nodes still hold, the step is redone without one share, as if its sum had
been lost unnoticed. The hash of that state must differ.
"""

from collections.abc import Mapping
import copy
import json
import pathlib
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.runtime.phases import reduce, update
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.training import step as step_lib
from bamboo_jax.training.setup import job as job_lib


class Control:
  """A callback that writes the hash of the last step without a share.

  For a process that hosts all nodes. Writes nothing if the run is resumed right
  before its last step, if a node dies with its sums once all have voted for that
  step, or if there is only one share.
  """

  def __init__(self, job: job_lib.Job, path: pathlib.Path) -> None:
    self._job, self._engine, self._path = job, job.engine, path
    self._before: dict[str, spec_lib.LayerState] = {}

  def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Keeps the state before the last step, and redoes that after it."""
    num_steps, num_shares = self._job.config.num_steps, self._engine.num_shares
    if step == num_steps - 1:
      take = lambda array: np.array(array)  # The array will be donated.
      layers: dict[str, spec_lib.LayerState] = {}
      for node in self._engine.nodes.values():  # An owner may just have died.
        layers |= node.state
      self._before = jax.tree.map(take, layers)
    elif step == num_steps and self._before and num_shares > 1 and self._has_sums():
      told = {
          "step": step,
          "shares": num_shares,
          "state_sha256": self.redo(dropped=base.ShareId(num_shares - 1)),
      }
      base.write_atomically(self._path, json.dumps(told) + "\n")

  def _has_sums(self) -> bool:
    """Whether the nodes still hold the sums of all shares; if one has died, maybe not."""
    engine = self._engine
    return all(
        node in engine.nodes and (unit.first, share) in engine.nodes[node].store.accumulators
        for row, shares in engine.lines
        for stage, node in base.by_stage(row)
        for unit in engine.specs[stage].units
        for share in shares
    )

  def redo(self, *, dropped: base.ShareId | None) -> str:
    """Returns the hash after the last step without a share; changes nothing."""
    engine = copy.copy(self._engine)  # With states and results of its own.
    engine.nodes = {number: copy.copy(node) for number, node in engine.nodes.items()}
    for node in engine.nodes.values():
      node.store = copy.copy(node.store)
    engine.lines = [
        (row, [share for share in shares if share != dropped]) for row, shares in engine.lines
    ]
    reduce.reduce(engine)
    for node in engine.nodes.values():
      node.state = {}
    for stage, owner in base.by_stage(engine.owners[0]):
      engine.nodes[owner].put_state({n: self._before[n] for n in engine.specs[stage].names})
    sums = step_lib.add_up(
        [step_lib.find_sums(engine)], clip_norm=self._job.config.optimizer.clip_norm
    )
    update.apply(engine, sums.scale)
    digests = layer_arrays.digest(engine.layer_states())
    plan, order = self._job.plan, self._job.task.whole.names
    samples_seen = self._job.config.num_steps * plan.batch.batch_size
    return layer_arrays.state_sha256(digests, order, samples_seen=samples_seen)
