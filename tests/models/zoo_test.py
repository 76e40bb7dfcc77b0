"""Numbers of parameters, as published; each variant takes about 0.3 s."""

import contextlib
import io

from absl.testing import parameterized

from bamboo_jax.models import zoo
from launch import models as models_command

PUBLISHED = (
    ("gpt2", "small", 124_439_808),
    ("gpt2", "medium", 354_823_168),
    ("gpt2", "large", 774_030_080),
    ("gpt2", "xl", 1_557_611_200),
)


class ZooTest(parameterized.TestCase):

  @parameterized.parameters(*PUBLISHED)
  def test_number_of_parameters(self, name, variant, expected):
    model = zoo.make_model(name, variant=variant)
    self.assertEqual(model.num_params(), expected)

  @parameterized.named_parameters((name, name) for name in zoo.VARIANTS)
  def test_fingerprint_makes_the_model(self, name):
    model = zoo.make_model(name, variant="tiny")
    again = zoo.make_model(**model.fingerprint)
    self.assertEqual(again.fingerprint, model.fingerprint)
    self.assertEqual(again.param_shapes(), model.param_shapes())

  def test_command_lists_all(self):
    all_variants, out = zoo.VARIANTS, io.StringIO()
    self.addCleanup(setattr, zoo, "VARIANTS", all_variants)
    zoo.VARIANTS = {"gpt2": ("tiny",)}
    with contextlib.redirect_stdout(out):
      models_command.main(["models"])
    self.assertEqual(
        out.getvalue(), "name,variant,layers,params\ngpt2,tiny,6,118528\n"
    )
