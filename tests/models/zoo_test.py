"""Numbers of parameters, as published; each variant takes about 0.3 s."""

import contextlib
import io

from absl.testing import parameterized

from bamboo_jax.models import zoo
from launch import models as models_command

PUBLISHED = (
    ("bert", "base", 110_106_428),
    ("bert", "large", 336_226_108),
    ("gpt2", "small", 124_439_808),
    ("gpt2", "medium", 354_823_168),
    ("gpt2", "large", 774_030_080),
    ("gpt2", "xl", 1_557_611_200),
    ("llama", "3.2_1b", 1_235_814_400),
    ("llama", "3.2_3b", 3_212_749_824),
    ("llama", "3.1_8b", 8_030_261_248),
    ("qwen", "3_0.6b", 596_049_920),
    ("qwen", "3_1.7b", 1_720_574_976),
    ("qwen", "3_4b", 4_022_468_096),
    ("qwen", "3_8b", 8_190_735_360),
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
    self.assertEqual(again.variable_shapes(), model.variable_shapes())

  def test_command_lists_all(self):
    all_variants, out = zoo.VARIANTS, io.StringIO()
    self.addCleanup(setattr, zoo, "VARIANTS", all_variants)
    zoo.VARIANTS = {"gpt2": ("tiny",)}
    with contextlib.redirect_stdout(out):
      models_command.main(["models"])
    self.assertEqual(
        out.getvalue(), "name,variant,layers,params\ngpt2,tiny,6,118528\n"
    )
