from absl.testing import parameterized
import jax
import optax

from bamboo_jax.models import zoo
from bamboo_jax.runtime.spmd import layout
from bamboo_jax.runtime.stage import spec as spec_lib


def make_whole(**options):
  model = zoo.make_model("llama", **options)
  return spec_lib.StageSpec(model, 0, len(model.layers), model.batch_shapes(1), optax.adamw(1e-3))


class LoraTest(parameterized.TestCase):

  def test_only_adapters_have_gradients_and_slots(self):
    whole = make_whole(variant="tiny", lora_rank=4, lora_targets="up_proj")
    names = ["lora_a_up_proj", "lora_b_up_proj"]
    for name, grads in zip(whole.names, whole.accumulator.grads, strict=True):
      self.assertEqual(sorted(grads), names * name.endswith(".mlp"))
    num_adapted = len(jax.tree.leaves(whole.accumulator.grads))
    self.assertEqual(num_adapted, 2 * 2)
    slots = [layer.slots for layer in whole.state.values()]
    extra = len(jax.tree.leaves(slots)) - len(whole.names)
    self.assertEqual(extra, 2 * num_adapted)  # Two moments, and a count each.

  @parameterized.parameters("gradient", "state")
  def test_upkeep_of_a_replica(self, refresh):
    """Less than 1 % of a replica is sent to it in a step."""
    whole = make_whole(variant="3.2_1b", num_blocks=1, lora_rank=16)
    block = whole.units[1]
    sent = block.accumulator
    if refresh == "state":
      sent = spec_lib.without_frozen(block, spec_lib.take(block, block.state))
    share = spec_lib.nbytes(sent) / spec_lib.nbytes(block.state)
    self.assertBetween(share, 1e-4, 1e-2)

  @parameterized.parameters(
      ({"lora_alpha": 8.0}, "lora_alpha=8.0 needs a lora_rank"),
      ({"lora_rank": 0}, "lora_rank must be a positive integer, got 0"),
      ({"lora_rank": 2, "lora_alpha": 0.0}, "lora_alpha must be above 0"),
      ({"lora_rank": 2, "lora_targets": "q_proj,v_pro"}, "did you mean 'v_proj'"),
  )
  def test_refuses(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      zoo.make_model("llama", variant="tiny", **options)

  def test_needs_rows(self):
    whole = make_whole(variant="tiny", lora_rank=2)
    with self.assertRaisesRegex(ValueError, "frozen parameters.*='rows'"):
      layout.split_blocks(whole)
