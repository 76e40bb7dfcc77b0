"""Compares all copies of each layer: owners and replicas, in all pipelines.

Every so many steps members say fingerprints with their votes, so that comparing
costs no message; after a change of who holds what, and at the end, they say
them once more. All compare all: those that differ are named by everybody.
"""

from collections.abc import Iterable
import dataclasses

from bamboo_jax.runtime.phases import replicas
from bamboo_jax.train import run_state as run_state_lib
from bamboo_jax.train import step as step_lib
from bamboo_jax.train.record import outputs as outputs_lib


@dataclasses.dataclass
class ReplicaCheck:
  """One member's part; `every_steps` is 0 if votes carry no fingerprints."""

  state: run_state_lib.RunState
  step: step_lib.Step
  outputs: outputs_lib.Outputs
  every_steps: int
  _checked: tuple[int, int, int] | None = None

  def say(self) -> replicas.Prints | None:
    """Returns fingerprints for the vote, None if they are not due."""
    steps = self.state.steps
    if not self.every_steps or steps % self.every_steps:
      return None
    return self.step.prints(steps)  # Part of the step.

  def hear(self, said: Iterable[replicas.Prints | None]) -> None:
    """Compares what all have said; raises `base.ReplicaMismatchError`."""
    told = [prints for prints in said if prints is not None]
    replicas.compare(told, self.state.engine.specs)

  def check_now(self) -> None:
    """Compares all copies between two steps; all members call it at once.

    Raises `base.ReplicaMismatchError`, or as `Cohort.gather`.
    """
    state = self.state
    now = (state.cohort.view.number, state.version, state.steps)
    if now == self._checked:
      return  # A key is said once in a view.
    self._checked = now
    with self.outputs.during("redundant"):
      prints = self.step.prints(state.steps)
    key = f"replicas {state.version} {state.steps}"
    self.hear(state.cohort.gather(key, prints).values())
