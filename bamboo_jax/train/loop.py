"""The training loop.

A step changes the state only when it is committed, so whatever interrupts it,
the state is that of a whole step. All that is done besides training, such as
metrics and checkpoints, is a hook.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from bamboo_jax.runtime import node as node_lib
from bamboo_jax.train import step as step_lib

# Returns entries of a microbatch, given step, microbatch and their names.
MicrobatchFn = Callable[[int, int, tuple[str, ...]], Mapping[str, np.ndarray]]


class Hook(Protocol):
  """Something that is done after a step."""

  def __call__(self, step: int, result: step_lib.StepResult) -> None:
    """Is called with the number of steps done and the result of the last."""


class Runner(Protocol):
  """Runs a step, such as `step.Transaction` and every `executor.Executor`."""

  def run(self, step: int, feed: node_lib.FeedFn) -> step_lib.StepResult:
    """Returns the result of a committed step; see `step.Transaction.run`."""


def run_steps(
    runner: Runner,
    *,
    first_step: int,
    num_steps: int,
    microbatch_fn: MicrobatchFn,
    hooks: Sequence[Hook] = (),
) -> None:
  """Trains until `num_steps` steps are done.

  Args:
    runner: Runs one step.
    first_step: Number of steps that the state has already seen.
    num_steps: Total number of steps.
    microbatch_fn: Returns the data. Must be deterministic, because a step that
      fails is computed again.
    hooks: Called after each step, in order.
  """
  for step in range(first_step, num_steps):

    def feed(
        microbatch: int, keys: tuple[str, ...], step: int = step
    ) -> Mapping[str, np.ndarray]:
      return microbatch_fn(step, microbatch, keys)

    result = runner.run(step, feed)
    for hook in hooks:
      hook(step + 1, result)
