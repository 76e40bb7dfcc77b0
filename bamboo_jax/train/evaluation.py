"""Evaluation by all members together, between two steps."""

import ml_collections

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import evaluate
from bamboo_jax.train.members import cohort as cohort_lib
from bamboo_jax.train.setup import build


class Evaluation:
  """Evaluates on the local nodes.

  A loss of a node cancels an evaluation unless all members had done their part;
  training does not depend on it.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      engine: engine_lib.Engine,
      cohort: cohort_lib.Cohort,
  ) -> None:
    self._every_steps = config.evaluate.every_steps
    self._count = build.num_eval_microbatches(config, task.batches)
    self._batches = task.batches
    self._engine = engine
    self._cohort = cohort

  def is_due(self, step: int) -> bool:
    """Returns whether to evaluate after `step` steps."""
    return self._every_steps > 0 and step % self._every_steps == 0

  def run(self, step: int) -> dict[str, float]:
    """Returns mean "loss" and perhaps "accuracy", after `step` steps.

    All members must call it.

    Raises:
      Exception: A transfer has failed, or a node of the view is gone.
    """
    batches = self._batches
    losses = evaluate.evaluate(
        self._engine,
        (
            batches.eval_microbatch(*divmod(i, batches.num_microbatches))
            for i in range(self._count)
        ),
        check=self._cohort.check,
    )
    said = self._cohort.gather(
        f"eval {step}", {str(i): loss.tolist() for i, loss in losses.items()}
    )
    return evaluate.average(
        {int(i): loss for words in said.values() for i, loss in words.items()}
    )
