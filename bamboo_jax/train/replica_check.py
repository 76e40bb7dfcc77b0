"""Compares all copies of each layer: owners and replicas, in all pipelines.

Every `redundancy.check_every_steps` steps, votes carry fingerprints, so that
the comparison costs no message of its own (`step.StepRunner`). After a change
of the layout, and at the end, members exchange them once more, here. Every
member compares all of them and names the copies that differ.
"""

import dataclasses

from bamboo_jax.runtime.phases import replicas
from bamboo_jax.train import run_state as run_state_lib
from bamboo_jax.train.record import outputs as outputs_lib


@dataclasses.dataclass
class ReplicaCheck:
  """One member's checks between steps."""

  state: run_state_lib.RunState
  outputs: outputs_lib.Outputs
  _checked: tuple[int, int, int] | None = None

  def check_now(self) -> None:
    """Compares all copies; blocks until all members call it.

    Raises `base.ReplicaMismatchError`, or as `Cohort.gather`.
    """
    state = self.state
    now = (state.cohort.view.number, state.version, state.steps)
    if now == self._checked:
      return  # `gather` allows a key once per view.
    self._checked = now
    with self.outputs.during("redundant"):
      prints = replicas.take_prints(state.engine, state.steps)
    key = f"replicas {state.version} {state.steps}"
    said = state.cohort.gather(key, prints).values()
    replicas.compare(said, state.engine.specs)
