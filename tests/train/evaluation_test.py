"""What the held-out microbatches come to."""

from absl.testing import absltest
import numpy as np

from bamboo_jax.train import evaluation


class AverageTest(absltest.TestCase):

  def test_loss_is_by_weight(self):
    losses = {1: np.array([9.0, 3.0]), 0: np.array([1.0, 1.0])}
    self.assertEqual(evaluation.average(losses), {"loss": 2.5})

  def test_accuracy_if_it_is_known(self):
    losses = {0: np.array([6.0, 4.0, 3.0]), 1: np.array([2.0, 4.0, 1.0])}
    self.assertEqual(evaluation.average(losses), {"loss": 1.0, "accuracy": 0.5})
