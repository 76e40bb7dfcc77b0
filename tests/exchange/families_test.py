"""Which config.json stands for one of our models and its options; longer arrays of ours."""

from absl.testing import parameterized
import numpy as np

from bamboo_jax.exchange import families
from tests.exchange import weights_test


def read(name, changes, gone=()):
  """Returns the options of a config.json of ours with changes, and what is wrong with it."""
  config = families.make_config(weights_test.make_model(name).fingerprint) | changes
  config = {key: value for key, value in config.items() if key not in gone}
  return families.read_options(families.family_of(name), config)


class HubConfigTest(parameterized.TestCase):

  @parameterized.parameters(
      ("llama", "quantization_config", {"quant_method": "fp8"}),
      ("llama", "sliding_window", 4096, ("use_sliding_window",)),
      ("llama", "rope_scaling", {"factor": 2.0, "beta_fast": 32}),
      ("llama", "rope_parameters", {"partial_rotary_factor": 0.5}, ("rope_scaling",)),
      ("llama", "partial_rotary_factor", 0.5),
      ("llama", "attn_logit_softcapping", 50.0),
      ("llama", "residual_multiplier", 0.22),
      ("llama", "num_local_experts", 8),
      ("llama", "no_rope_layers", [1, 0]),
      ("llama", "is_causal", False),
      ("llama", "hidden_act", "gelu"),
      ("llama", "pretraining_tp", 2),
      ("llama", "pretraining_tp", True),  # 1 is no switch.
      ("llama", "use_new_trick", True),
      ("gpt2", "position_embedding_type", "relative_key"),
      ("qwen", "use_sliding_window", True),
      ("qwen", "layer_types", ["sliding_attention"]),
      ("gpt2", "add_cross_attention", True),
      ("bert", "position_embedding_type", "relative_key"),
  )
  def test_keys_that_change_the_meaning(self, name, key, value, gone=()):
    (problem,) = read(name, {key: value}, gone)[1]
    self.assertStartsWith(problem, "config.json has ")
    self.assertIn([*value][-1] if key.startswith("rope") else key, problem)

  @parameterized.parameters(  # Many of these are as they are published.
      (
          "llama",
          {
              **dict.fromkeys(("quantization_config", "sliding_window", "rope_scaling")),
              "attn_logit_softcapping": None,
              "residual_multiplier": 1.0,
              "pretraining_tp": 1,
              "torch_dtype": "bfloat16",
              "attention_dropout": 0.1,
              "initializer_range": 0.02,
              "transformers_version": "5.0.0",
              "layer_types": ["full_attention"],
              "rope_parameters": {"rope_type": "default", "factor": 1.0},
              "bos_token_id": 128000,
              "eos_token_id": [128001, 128008],
              "pad_token_id": 4,
              "unsloth_fixed": True,
              "_name_or_path": "a/b",
              "max_sequence_length": 2048,
          },
      ),
      ("llama", {"sliding_window": 4096}),
      ("qwen", {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}),
      ("qwen", {"layer_types": None}),
      ("qwen", {"max_window_layers": 28, "sliding_window": None}, ("use_sliding_window",)),
      (
          "gpt2",
          {
              "n_ctx": 1024,
              "attn_pdrop": 0.1,
              "embd_pdrop": 0.1,
              "resid_pdrop": 0.1,
              "bos_token_id": 50256,
              "initializer_range": 0.02,
              "model_type": "gpt2",
              "summary_type": "cls_index",
              "summary_first_dropout": 0.1,
              "summary_use_proj": True,
              "use_cache": True,
              "summary_proj_to_labels": True,
              "task_specific_params": {"text-generation": {"max_length": 50}},
          },
      ),
      (
          "bert",
          {
              "pad_token_id": 0,
              "directionality": "b",
              "attention_probs_dropout_prob": 0.1,
              "pooler_fc_size": 768,
              "pooler_type": "first_token_transform",
              "num_labels": 2,
              "intermediate_size": 256,
              "hidden_dropout_prob": 0.1,
          },
      ),
  )
  def test_keys_that_change_nothing(self, name, changes, gone=()):
    self.assertEqual(read(name, changes, gone)[1], [])

  def test_kinds_of_rotation(self):
    slowed = read_slowed() | {"factor": 2.0}
    for rope, factor in (
        ({"rope_scaling": slowed}, 2.0),
        ({"rope_scaling": None, "rope_parameters": slowed}, 2.0),
        ({"rope_scaling": None}, 1.0),
    ):
      options, problems = read("llama", rope)
      self.assertEqual((options["rope_factor"], problems), (factor, []))
    at_5 = slowed | {"rope_theta": 5.0}
    for rope, problem in (
        ({"rope_parameters": at_5 | {"factor": 4.0}}, "config.json has factor=2.0 and also 4.0"),
        (
            {"rope_parameters": at_5, "rope_theta": 1.0},
            "config.json has rope_theta=1.0 and also 5.0",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5.0}},
            "config.json has rope_scaling and other rope_parameters",
        ),
        (
            {"rope_scaling": slowed | {"type": "linear"}},
            "config.json has rope_type='linear' and also 'llama3'",
        ),
    ):
      given = {"rope_scaling": slowed, "rope_theta": 5.0} | rope
      self.assertEqual(read("llama", given)[1], [problem])
    old = {"type": "yarn"} | {k: v for k, v in slowed.items() if k != "rope_type"}
    (problem,) = read("llama", {"rope_scaling": old})[1]
    self.assertEqual(problem, "config.json has rope_type='yarn', must be 'llama3'")

  def test_an_option_without_a_counterpart(self):
    model = weights_test.make_model("gpt2", attention_bias=False)
    with self.assertRaisesRegex(ValueError, "attention_bias=False"):
      families.make_config(model.fingerprint)

  @parameterized.product(tied=[True, False])
  def test_padding_of_the_vocabulary_is_not_exchanged(self, tied):
    model = weights_test.make_model("gpt2", vocab_size=250, vocab_multiple=64, tied=tied)
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


def read_slowed():
  """Returns how a config.json describes slowed rotations."""
  return families.make_config(weights_test.make_model("llama").fingerprint)["rope_scaling"]
