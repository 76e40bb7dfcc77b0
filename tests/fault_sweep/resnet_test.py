"""A model with statistics; compiling it takes most of the time."""

from absl.testing import absltest

from configs import resnet
from tests.fault_sweep import one_model


class ResnetTest(absltest.TestCase):

  def test_same_bits(self):
    one_model.check(self, make_config)


def make_config():
  config = resnet.get_config("tiny")
  config.model.options.update(num_classes=3, depths=(1, 1), width=4, image_size=8)
  return config
