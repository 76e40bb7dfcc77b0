"""Numbers of parameters, as published; each variant takes about 0.3 s."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp

from bamboo_jax.models import zoo

# The model that is compared with torch.
_OF_TORCH = dict(
    num_blocks=8, width=256, sequence_length=128, vocab_size=8192, tied=False, attention_bias=False
)
PUBLISHED = (
    ("bert", "base", 110_106_428),
    ("bert", "large", 336_226_108),
    ("gpt2", "small", 124_439_808),
    ("gpt2", "medium", 354_823_168),
    ("gpt2", "large", 774_030_080),
    ("gpt2", "xl", 1_557_611_200),
    ("gpt2", "tiny", 10_537_472, _OF_TORCH),
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
  def test_number_of_parameters(self, name, variant, expected, options=None):
    model = zoo.make_model(name, variant=variant, **(options or {}))
    self.assertEqual(model.num_params(), expected)

  @parameterized.named_parameters((name, name) for name in zoo.VARIANTS)
  def test_fingerprint_makes_the_model(self, name):
    model = zoo.make_model(name, variant="tiny")
    again = zoo.make_model(**model.fingerprint)
    self.assertEqual(again.fingerprint, model.fingerprint)
    self.assertEqual(again.variable_shapes(), model.variable_shapes())

  @parameterized.named_parameters(
      ("bert_long", "bert", {"sequence_length": 65}, "=65 is longer than .*=64"),
      ("gpt2_long", "gpt2", {"positions": 31}, "=32 is longer than .*=31"),
      ("llama_long", "llama", {"sequence_length": 129}, "longer than .*=128"),
      ("qwen_heads", "qwen", {"num_kv_heads": 3}, "num_heads=4 must be a mult"),
      ("heads", "gpt2", {"width": 70}, "width=70 must be a multiple of num_he"),
      ("odd", "llama", {"head_width": 5}, "head_width must be even, got 5"),
      ("dtype", "llama", {"dtype": "float16"}, "Unknown dtype 'float16'"),
      ("chunk", "gpt2", {"loss_chunk": 0}, "loss_chunk must be a positive"),
      ("kernel", "gpt2", {"attention": "cudn"}, "did you mean 'cudnn'"),
      ("drop", "gpt2", {"attention": "xla"}, "'xla' does not .* got 0.1"),
      ("cudnn", "llama", {"attention": "cudnn"}, "needs dtype=bfloat16, got f"),
      ("model", "gtp2", {}, "Unknown model 'gtp2'; did you mean 'gpt2'"),
      ("variant", "gpt2", {"variant": "smal"}, "'smal'; did you mean 'small'"),
      ("varint", "gpt2", {"varint": "tiny"}, "did you mean 'variant'"),
      ("rate", "bert", {"dropout_rate": 1.0}, "dropout_rate must be"),
      ("below", "gpt2", {"dropout_rate": -0.1}, "0 and below 1, got -0.1"),
      ("moved", "vgg", {}, "'vgg' is now .*paper_models.convnet:make_vgg'"),
      ("places", "gpt2", {"positions": 0}, "positions must be a positive"),
      ("zero", "llama", {"num_blocks": 0}, "num_blocks must be a positive"),
  )
  def test_refuses(self, name, options, message):
    with self.assertRaisesRegex(ValueError, message):
      zoo.make_model(name, **{"variant": "tiny"} | options)

  @parameterized.parameters("bert", "gpt2", "llama")
  def test_refuses_batch_of_another_length(self, name):
    model = zoo.make_model(name, variant="tiny", num_blocks=1)
    shapes = model.batch_shapes(2)
    longer = jax.ShapeDtypeStruct((2, 33), jnp.int32)
    shapes |= {k: longer for k in ("inputs", "segments") if k in shapes}
    with self.assertRaisesRegex(ValueError, r"=32, but 'inputs' .* \(2, 33\)"):
      model.input_shapes(shapes)

  @parameterized.parameters("bert", "llama")
  def test_activations_are_of_the_dtype(self, name):
    model = zoo.make_model(name, variant="tiny", num_blocks=1, dtype="bfloat16")
    inputs = model.input_shapes(model.batch_shapes(2))[1:]
    self.assertEqual({str(a.dtype) for a in inputs}, {"bfloat16"})
    for leaf in jax.tree.leaves(model.variable_shapes()):
      self.assertEqual(leaf.dtype, jnp.float32)
