import json

from absl.testing import absltest

from bamboo_jax import base
from bamboo_jax.base import extras


class ExtrasTest(absltest.TestCase):

  def test_module_is_returned(self):
    found = extras.load("json.decoder", extra="none", what="A test")
    self.assertIs(found, json.decoder)

  def test_missing_module(self):
    with self.assertRaises(base.MissingExtraError) as caught:
      extras.load("no_such_module.part", extra="plots", what="Figures")
    self.assertEqual(
        str(caught.exception),
        "Figures: No module named 'no_such_module'. Install the extra: pip "
        "install 'bamboo_jax[plots]'.",
    )
