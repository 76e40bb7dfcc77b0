"""Compares all copies of each layer: owners and replicas, in all pipelines.

Every so many steps members say fingerprints with their votes, so that comparing
costs no message; after a change of who holds what, and at the end, they say
them once more. All compare all: those that differ are named by everybody.
"""

from collections.abc import Iterable

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.train import run_state as run_state_lib
from bamboo_jax.train import step as step_lib
from bamboo_jax.train.members import cohort as cohort_lib
from bamboo_jax.train.record import outputs as outputs_lib


class ReplicaCheck:
  """One member's part; `every_steps` is 0 if votes carry no fingerprints."""

  def __init__(
      self,
      engine: engine_lib.Engine,
      cohort: cohort_lib.Cohort,
      state: run_state_lib.RunState,
      *,
      step: step_lib.Step,
      outputs: outputs_lib.Outputs,
      every_steps: int,
  ) -> None:
    self._engine = engine
    self._cohort = cohort
    self._state = state
    self._step = step
    self._outputs = outputs
    self._every_steps = every_steps
    self._checked: tuple[int, int, int] | None = None

  def say(self) -> replicas.Prints | None:
    """Returns fingerprints for the vote, None if they are not due."""
    steps = self._state.steps
    if not self._every_steps or steps % self._every_steps:
      return None
    return self._step.prints(steps)  # Part of the step.

  def hear(self, said: Iterable[replicas.Prints | None]) -> None:
    """Compares what all have said.

    Raises:
      base.ReplicaMismatchError: Two copies of a layer differ.
    """
    told = [prints for prints in said if prints is not None]
    replicas.compare(told, self._engine.specs)

  def check_now(self) -> None:
    """Compares all copies between two steps; all members call it at once.

    Raises:
      base.ReplicaMismatchError: Two copies of a layer differ.
      base.ViewChangedError: A member is gone.
    """
    state = self._state
    now = (self._cohort.view.number, state.version, state.steps)
    if now == self._checked:
      return  # A key is said once in a view.
    self._checked = now
    with self._outputs.during("redundant"):
      prints = self._step.prints(state.steps)
    key = f"replicas {state.version} {state.steps}"
    self.hear(self._cohort.gather(key, prints).values())
