"""Compares all copies of each layer: owners and replicas, in all pipelines.

Every `redundancy.check_every_steps` steps, votes carry fingerprints, so that
the comparison costs no message of its own; after a change of the layout, and at
the end, members exchange them once more. Every member compares all of them and
names the copies that differ.
"""

from collections.abc import Iterable
import dataclasses

from bamboo_jax.runtime.phases import replicas
from bamboo_jax.train import run_state as run_state_lib
from bamboo_jax.train import step as step_lib
from bamboo_jax.train.record import outputs as outputs_lib


@dataclasses.dataclass
class ReplicaCheck:
  """One member's checks; `every_steps` is 0 if votes carry no fingerprints."""

  state: run_state_lib.RunState
  step: step_lib.StepRunner
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
    """Compares fingerprints; `base.ReplicaMismatchError` if copies differ."""
    if told := [prints for prints in said if prints is not None]:
      replicas.compare(told, self.state.engine.specs)

  def check_now(self) -> None:
    """Compares all copies between two steps; blocks until all members call it.

    Raises `base.ReplicaMismatchError`, or as `Cohort.gather`.
    """
    state = self.state
    now = (state.cohort.view.number, state.version, state.steps)
    if now == self._checked:
      return  # `gather` allows a key once per view.
    self._checked = now
    with self.outputs.during("redundant"):
      prints = self.step.prints(state.steps)
    key = f"replicas {state.version} {state.steps}"
    self.hear(state.cohort.gather(key, prints).values())
