"""A model that passes on tuples; compiling it takes most of the time."""

from absl.testing import absltest

from configs import gnmt
from tests.fault_sweep import one_model


class GnmtTest(absltest.TestCase):

  def test_same_bits(self):
    one_model.check(self, make_config)


def make_config():
  config = gnmt.get_config("tiny")
  config.model.options.update(width=8, sequence_length=12, vocab_size=256)
  return config
