"""What the held-out microbatches come to."""

import types

from absl.testing import absltest
import numpy as np

from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.training import cohort as cohort_lib, evaluation, failures
from bamboo_jax.training.setup import accept, job as job_lib
from tests import tiny


class EvaluationTest(absltest.TestCase):

  def test_loss_and_metrics_are_by_weight(self):
    losses = {0: np.array([6.0, 4.0, 3.0, 9.0]), 1: np.array([2.0, 4.0, 1.0, 7.0])}
    means = {"loss": 1.0, "accuracy": 0.5, "bits": 2.0}
    self.assertEqual(evaluation.average(losses, ("accuracy", "bits")), means)

  def test_the_mean_is_that_of_the_samples_there_are(self):
    """Two models are compiled: 7 samples, two and four at a time."""
    found = []
    for size in (2, 4):
      config = accept.accept(
          tiny.make_config(
              data__options={"num_heldout": 7},
              evaluate__every_steps=1,
              pipeline__microbatch_size=size,
          )
      )
      job = job_lib.make_job(config, devices=devices_lib.place_nodes([0, 1]))
      job.engine.set_state(spec_lib.init_layers(job.task.whole))
      cohort = cohort_lib.LocalCohort(2)
      given = types.SimpleNamespace(cohort=cohort, stops=lambda: False)
      data = failures.SafeData(job.task, cohort, failures.Failures())
      means, _ = evaluation.run(job, data, given, step=0)
      found.append(means["loss"])
      self.assertEqual(data.failures.first.text, "")
    np.testing.assert_allclose(found, found[0], rtol=1e-6)
