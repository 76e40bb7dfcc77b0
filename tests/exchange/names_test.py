"""Arrays of ours that are longer than the tensors that they come from."""

from absl.testing import parameterized
import numpy as np

from bamboo_jax.exchange import families
from bamboo_jax.models import zoo


class RulesTest(parameterized.TestCase):

  @parameterized.product(tied=[True, False])
  def test_padding_of_the_vocabulary_is_not_exchanged(self, tied):
    model = zoo.make_model("gpt2", variant="tiny", vocab_size=250, vocab_multiple=64, tied=tied)
    shapes = families.shapes_of(model)
    padded = {
        r.array: r for r in families.rules_of(model.fingerprint, shapes) if r.rows is not None
    }
    self.assertEqual(set(padded), {"params/wte"} if tied else {"params/wte", "params/weight"})
    for array, rule in padded.items():
      shape = shapes[rule.layer][array]
      self.assertIn(256, shape)
      self.assertEqual(rule.their_shape(shape), (250, 64))
      ours = np.arange(256 * 64, dtype=np.float32).reshape(shape)
      theirs = rule.to_theirs(ours)
      (tensor,) = theirs.values()
      self.assertEqual(tensor.shape, (250, 64))
      again = rule.to_ours([tensor], shape)
      kept = again if array.endswith("wte") else again.T
      was = ours if array.endswith("wte") else ours.T
      np.testing.assert_array_equal(kept[:250], was[:250])
      self.assertEqual(np.abs(kept[250:]).max(), 0.0)
