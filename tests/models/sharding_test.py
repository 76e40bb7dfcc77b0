"""Which dimension of a parameter is cut over which devices."""

from absl.testing import parameterized
import jax

from bamboo_jax.models import sharding, zoo

SIZES = {"data": 2, "tensor": 4}


class ShardingTest(parameterized.TestCase):

  @parameterized.parameters(
      ("gpt2", ["embed", "wte"], (256, 64), ("tensor", "data")),
      ("gpt2", ["qkv_bias"], (192,), ("tensor",)),
      ("gpt2", ["norm_scale"], (64,), ()),
      ("qwen", ["down_proj", "kernel"], (128, 64), ("tensor", "data")),
      ("gpt2", ["wte"], (8,), ()),  # A slot of another shape.
      ("resnet", ["conv", "kernel"], (3, 3, 3, 8), (None, None, None, "data")),
      ("resnet", ["conv", "kernel"], (3, 3, 3, 7), ()),
  )
  def test_rule(self, model, names, shape, rule):
    self.assertEqual(sharding.find_rule(model, names, shape, SIZES), rule)

  def test_mesh_that_does_not_divide_a_shape(self):
    with self.assertRaisesRegex(
        ValueError, r"mesh.tensor=4 does not divide embed.wte of 'gpt2', .*50257"
    ):
      sharding.find_rule("gpt2", ["embed", "wte"], (50257, 64), SIZES)

  @parameterized.parameters(*sharding.RULES)
  def test_rules_name_parameters(self, name):
    found = set()
    for tied in (True, False):
      model = zoo.make_model(name, variant="tiny", tied=tied)
      params = [v.params for v in model.variable_shapes().values()]
      for path, _ in jax.tree_util.tree_leaves_with_path(params):
        keys = [k.key for k in path[1:]]
        found |= {keys[-1], ".".join(keys[-2:])}
    self.assertContainsSubset(sharding.RULES[name], found)
