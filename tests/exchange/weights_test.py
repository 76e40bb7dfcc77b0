"""Weights written for `transformers` are read again, to the bit."""

import contextlib
import functools
import io
import json
import os
import pathlib
import shutil

from absl.testing import parameterized
import jax
import numpy as np
from safetensors import numpy as safetensors

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    folder as folder_lib,
    manifest as manifest_lib,
)
from bamboo_jax.exchange import hub_config, hub_folder, names, weights
from bamboo_jax.launch import convert
from bamboo_jax.models import zoo
from tests import folders


@functools.cache
def make_model(name, **options):
  return zoo.make_model(name, variant="tiny", **{"num_blocks": 1, **options})


def random_weights(model):
  rng = np.random.default_rng(0)
  drawn = {
      layer: {k: rng.standard_normal(s, np.float32) for k, s in arrays.items()}
      for layer, arrays in names.shapes_of(model).items()
  }
  for layer in model.layers:
    for tie in layer.ties:
      owner = drawn[tie.layer][f"params/{tie.layer_param}"]
      drawn[layer.name][f"params/{tie.param}"] = owner
  return drawn


def write_hub(path, model, drawn, max_file_bytes=1 << 30):
  hub_folder.write(path, model, read=drawn.__getitem__, max_file_bytes=max_file_bytes)


class WeightsTest(folders.FolderCase):

  def assert_same(self, variables_of, model, drawn):
    for layer, arrays in drawn.items():
      like = layer_arrays.shapes_of(variables_of(layer))
      self.assertEqual(like.keys(), arrays.keys())
      restored = layer_arrays.restore_layer(arrays, variables_of(layer))
      jax.tree.map(np.testing.assert_array_equal, variables_of(layer), restored)

  @parameterized.named_parameters(
      ("bert", "bert", {}),
      ("gpt2", "gpt2", {}),
      ("gpt2_untied", "gpt2", {"tied": False}),
      ("llama", "llama", {}),
      ("llama_untied", "llama", {"tied": False, "rope_factor": 1.0}),
      ("qwen", "qwen", {}),
  )
  def test_round_trip(self, name, options):
    model = make_model(name, **options)
    drawn = random_weights(model)
    hub, ours, back = (self.folder / part for part in ("hub", "ours", "back"))
    write_hub(hub, model, drawn, max_file_bytes=1 << 16)
    self.assertGreater(len(list(hub.glob("*.safetensors"))), 1)
    self.assert_same(weights.open_weights(hub, model), model, drawn)

    imported = weights.import_folder(hub, name=name, out=ours)
    keys = {"sequence_length", "positions", "dropout_rate", "num_masked"}
    keys |= {"attention_dropout_rate"}
    for key in model.fingerprint.keys() - keys:
      self.assertEqual(imported.fingerprint[key], model.fingerprint[key], key)
    self.assert_same(weights.open_weights(ours, model), model, drawn)

    weights.export_folder(ours, name=name, out=back, max_file_bytes=1 << 30)
    want = {}
    for file in sorted(hub.glob("*.safetensors")):
      want |= safetensors.load_file(file)
    got = safetensors.load_file(back / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, got, want)

  @parameterized.named_parameters(
      (
          *("gpt2", "gpt2", "transformer.ln_f.bias"),
          {
              "transformer.wpe.weight": np.zeros((7, 64), np.float32),
              "more": np.zeros(3, np.float32),
              "transformer.h.0.attn.bias": np.zeros(3, np.float32),  # A mask.
          },
          {"n_head": 2, "activation_function": "relu"},
          [
              "  config.json has activation_function='relu', must be " "'gelu_new'",
              "  config.json has n_head=2, the model has num_heads=4",
              "  unknown: more [3]",
              "  missing: transformer.ln_f.bias [64]",
              "  shape: transformer.wpe.weight is [7, 64], must be [32, 64]",
          ],
      )
  )
  def test_names_all_that_does_not_fit(self, name, gone, added, options, want):
    model = make_model(name)
    write_hub(self.folder, model, random_weights(model))
    file, config = (self.folder / part for part in ("model.safetensors", "config.json"))
    tensors = safetensors.load_file(file)
    del tensors[gone]
    safetensors.save_file(tensors | added, file)
    config.write_text(json.dumps(json.loads(config.read_text()) | options))
    with self.assertRaises(base.CheckpointError) as caught:
      weights.open_weights(self.folder, model)
    self.assertEqual(str(caught.exception).splitlines()[1:], want)

  def change(self, folder, changes, file="model.safetensors"):
    """Writes tensors into a file; those that are None are removed."""
    tensors = safetensors.load_file(folder / file) | changes
    tensors = {k: v for k, v in tensors.items() if v is not None}
    safetensors.save_file(tensors, folder / file)

  def change_config(self, changes):
    file = self.folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

  @parameterized.parameters(
      ("llama", "lm_head.weight", "model.embed_tokens.weight"),
      ("gpt2", "lm_head.weight", "transformer.wte.weight"),
      (*("bert", "cls.predictions.decoder.weight"), "bert.embeddings.word_embeddings.weight"),
      ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
  )
  def test_copies_of_tied_tensors(self, name, copy, original):
    model = make_model(name)
    drawn = random_weights(model)
    write_hub(self.folder, model, drawn)
    value = safetensors.load_file(self.folder / "model.safetensors")[original]
    self.change(self.folder, {copy: value})
    self.assert_same(weights.open_weights(self.folder, model), model, drawn)
    message = f"  {copy} differs from {original}; the model ties them"
    changed = value.copy()
    changed.flat[-1] += 1  # The last number.
    for other in (changed, value[:-1], value.astype(np.float16)):
      self.change(self.folder, {copy: other})
      with self.assertRaises(base.CheckpointError) as caught:
        weights.import_folder(self.folder, name=name, out=self.folder / "out")
      self.assertEqual(str(caught.exception).splitlines()[1:], [message])
    self.assertFalse((self.folder / "out").exists())

  @parameterized.named_parameters(
      ("tied_head_of_another_family", "bert", "lm_head.weight"),
      ("adapter", "llama", "base_model.model.lora_A.weight"),
      ("scale", "llama", "model.layers.0.mlp.up_proj.weight_scale_inv"),
      ("bias", "qwen", "model.layers.0.self_attn.q_proj.bias"),
      ("block", "llama", "model.layers.1.mlp.up_proj.weight"),
      ("position_ids_of_another", "llama", "position_ids"),
  )
  def test_no_tensor_is_dropped(self, name, tensor):
    model = make_model(name)
    write_hub(self.folder, model, random_weights(model))
    self.change(self.folder, {tensor: np.zeros(2, np.float32)})
    with self.assertRaises(base.CheckpointError) as caught:
      weights.open_weights(self.folder, model)
    self.assertEqual(str(caught.exception).splitlines()[1:], [f"  unknown: {tensor} [2]"])

  @parameterized.parameters(
      ("bert", "bert.embeddings.position_ids"),
      ("gpt2", "transformer.h.0.attn.masked_bias"),
      ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
  )
  def test_tensors_without_information(self, name, tensor):
    model = make_model(name)
    drawn = random_weights(model)
    write_hub(self.folder, model, drawn)
    self.change(self.folder, {tensor: np.zeros(2, np.int64)})
    self.assert_same(weights.open_weights(self.folder, model), model, drawn)

  @parameterized.parameters("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "I64", "BOOL")
  def test_dtypes_that_need_a_scale(self, dtype):
    model = make_model("llama")
    write_hub(self.folder, model, random_weights(model))
    name = "model.norm.weight"
    self.change(self.folder, {name: np.zeros(64, np.int8)})
    file = self.folder / "model.safetensors"
    size = {"I64": 8}.get(dtype, 1)
    tensors = safetensors.load_file(file)
    tensors[name] = np.zeros(64, np.int64 if size == 8 else np.int8)
    data = safetensors.save(tensors)
    old = b'"I64"' if size == 8 else b'"I8"'
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip()
    header = header.replace(old, b'"%s"' % dtype.encode())
    header += b" " * (-len(header) % 8)
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    with self.assertRaises(base.CheckpointError) as caught:
      weights.open_weights(self.folder, model)
    self.assertEqual(
        str(caught.exception).splitlines()[1:],
        [f"  dtype: {name} is {dtype}, must be one of F64, F32, F16, BF16"],
    )

  @parameterized.parameters(np.float64, np.float16)
  def test_other_floats(self, dtype):
    model = make_model("llama")
    drawn = random_weights(model)
    drawn["head"]["params/norm/scale"] = np.arange(64, dtype=np.float32)
    write_hub(self.folder, model, drawn)
    values = {"model.norm.weight": np.arange(64, dtype=dtype)}
    self.change(self.folder, values)
    self.assert_same(weights.open_weights(self.folder, model), model, drawn)

  @parameterized.parameters(
      (np.float32, np.nan),
      (np.float32, -np.inf),
      (np.float16, np.inf),
      (np.float64, 1e300),  # Infinite as float32.
  )
  def test_what_is_not_finite_is_rejected_when_read(self, dtype, value):
    model = make_model("gpt2")
    write_hub(self.folder, model, random_weights(model))
    values = np.zeros(64, dtype)
    values[-1] = value
    self.change(self.folder, {"transformer.ln_f.weight": values})
    read = weights.open_weights(self.folder, model)
    read("embed")
    file = self.folder / "model.safetensors"
    message = f"^{file}: the tensor transformer.ln_f.weight has NaN or infinite"
    with self.assertRaisesRegex(base.CheckpointError, message):
      read("head")
    with self.assertRaisesRegex(base.CheckpointError, message):
      weights.import_folder(self.folder, name="gpt2", out=self.folder / "out")
    ones = np.ones(64, np.float32)
    self.change(self.folder, {"transformer.ln_f.weight": ones})
    weights.import_folder(self.folder, name="gpt2", out=self.folder / "out")
    self.assertLen(os.listdir(self.folder / "out" / "0"), 1)

  @parameterized.parameters(
      ("llama", "quantization_config", {"quant_method": "fp8"}),
      ("llama", "rope_scaling", {"factor": 2.0, "beta_fast": 32}),
      ("llama", "rope_parameters", {"partial_rotary_factor": 0.5}),
      ("llama", "partial_rotary_factor", 0.5),
      ("llama", "attn_logit_softcapping", 50.0),
      ("llama", "final_logit_softcapping", 30.0),
      ("llama", "residual_multiplier", 0.22),
      ("llama", "logits_scaling", 8),
      ("llama", "num_local_experts", 8),
      ("llama", "no_rope_layers", [1, 0]),
      ("llama", "is_causal", False),
      ("llama", "attention_bias", True),
      ("llama", "mlp_bias", True),
      ("llama", "hidden_act", "gelu"),
      ("llama", "pretraining_tp", 2),
      ("llama", "auto_map", {"AutoModel": "mine.Model"}),
      ("llama", "use_new_trick", True),
      ("llama", "no_rope_layer_interval", 4),
      ("gpt2", "position_embedding_type", "relative_key"),
      ("qwen", "use_sliding_window", True),
      ("qwen", "layer_types", ["sliding_attention"]),
      ("gpt2", "scale_attn_by_inverse_layer_idx", True),
      ("gpt2", "add_cross_attention", True),
      ("bert", "is_decoder", True),
      ("bert", "position_embedding_type", "relative_key"),
      ("bert", "pruned_heads", {"0": [1]}),
  )
  def test_keys_that_change_the_meaning(self, name, key, value):
    model = make_model(name)
    write_hub(self.folder, model, random_weights(model))
    rope = {"rope_scaling": None} if key == "rope_parameters" else {}
    self.change_config(rope | {key: value})
    with self.assertRaises(base.CheckpointError) as caught:
      weights.import_folder(self.folder, name=name, out=self.folder / "out")
    (line,) = str(caught.exception).splitlines()[1:]
    self.assertIn("config.json has ", line)
    self.assertIn([*value][-1] if key.startswith("rope") else key, line)

  def test_a_window_is_in_use_unless_it_is_switched_off(self):
    family = hub_config.family_of("llama")
    config = hub_config.make_config(make_model("llama").fingerprint)
    window = {"sliding_window": 4096}
    self.assertEmpty(hub_config.read_options(family, config | window)[1])
    del config["use_sliding_window"]
    (problem,) = hub_config.read_options(family, config | window)[1]
    self.assertIn("sliding_window=4096", problem)

  def test_keys_that_change_nothing(self):
    for name, keys in (
        (
            "llama",
            {
                "quantization_config": None,
                "sliding_window": None,
                "attn_logit_softcapping": None,
                "residual_multiplier": 1.0,
                "pretraining_tp": 1,
                "torch_dtype": "bfloat16",
                "attention_dropout": 0.1,
                "initializer_range": 0.02,
                "transformers_version": "5.0.0",
                "bos_token_id": 1,
                "layer_types": ["full_attention"],
                "rope_scaling": None,
                "rope_parameters": {"rope_type": "default", "factor": 1.0},
            },
        ),
        (
            "qwen",
            {
                "use_sliding_window": False,
                "sliding_window": 4096,
                "max_window_layers": 28,
                "layer_types": None,
            },
        ),
        ("gpt2", {"n_ctx": 1024, "summary_type": "cls_index", "n_inner": None}),
        ("bert", {"pad_token_id": 0, "classifier_dropout": None}),
    ):
      family = hub_config.family_of(name)
      config = hub_config.make_config(make_model(name).fingerprint) | keys
      self.assertEqual(hub_config.read_options(family, config)[1], [], name)

  def test_published_files(self):
    """Entries of config.json as they are published."""
    for name, keys in (
        (
            "gpt2",
            {
                **{"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1},
                **{"bos_token_id": 50256, "eos_token_id": 50256},
                **{"initializer_range": 0.02, "model_type": "gpt2"},
                **{"n_ctx": 1024, "summary_activation": None},
                **{"summary_first_dropout": 0.1, "summary_use_proj": True},
                **{"summary_proj_to_labels": True, "use_cache": True},
                "task_specific_params": {"text-generation": {"max_length": 50}},
            },
        ),
        (
            "llama",
            {
                **{"bos_token_id": 128000, "eos_token_id": [128001, 128008]},
                **{"torch_dtype": "bfloat16", "pretraining_tp": 1},
                **{"unsloth_fixed": True, "pad_token_id": 128004},
                **{"_name_or_path": "a/b", "max_sequence_length": 2048},
            },
        ),
        ("qwen", {"max_window_layers": 28, "sliding_window": None}),
        (
            "bert",
            {
                **{"attention_probs_dropout_prob": 0.1, "directionality": "b"},
                **{"gradient_checkpointing": False, "pooler_fc_size": 768},
                **{"pooler_type": "first_token_transform", "num_labels": 2},
                **{"intermediate_size": 256, "hidden_dropout_prob": 0.1},
            },
        ),
    ):
      family = hub_config.family_of(name)
      config = hub_config.make_config(make_model(name).fingerprint) | keys
      if name == "qwen":
        del config["use_sliding_window"]
      self.assertEqual(hub_config.read_options(family, config)[1], [], name)

  def test_other_safetensors_files(self):
    model = make_model("llama")
    drawn = random_weights(model)
    write_hub(self.folder, model, drawn)
    one = self.folder / "model.safetensors"
    adapter = {"lora": np.zeros(2, np.float32)}
    safetensors.save_file(adapter, self.folder / "adapter_model.safetensors")
    with self.assertLogs("absl", "WARNING") as logs:
      self.assert_same(weights.open_weights(self.folder, model), model, drawn)
    self.assertIn(
        "are read from model.safetensors; not read: adapter_model.safetensors.", logs.output[0]
    )
    part = one.with_name("model-00001-of-00001.safetensors")
    one.rename(part)  # An index is not needed.
    with self.assertLogs("absl", "WARNING"):
      self.assert_same(weights.open_weights(self.folder, model), model, drawn)
    part.rename(self.folder / "other.safetensors")
    with self.assertRaisesRegex(
        base.CheckpointError, "none of adapter_model.safetensors, other.safetensors is model.saf"
    ):
      weights.open_weights(self.folder, model)
    (self.folder / "adapter_model.safetensors").unlink()
    with self.assertNoLogs("absl"):
      self.assert_same(weights.open_weights(self.folder, model), model, drawn)

  def test_a_tensor_in_two_files(self):
    model = make_model("llama")
    write_hub(self.folder, model, random_weights(model))
    one = self.folder / "model.safetensors"
    for number in (1, 2):
      name = f"model-0000{number}-of-00002.safetensors"
      shutil.copyfile(one, self.folder / name)
    one.unlink()
    with self.assertRaisesRegex(
        base.CheckpointError, "occurs twice, in model-00001.* and model-00002"
    ):
      weights.open_weights(self.folder, model)

  def test_names_of_other_writers(self):
    """As in the files of the first releases of these models."""
    for name, old_name in (
        ("gpt2", lambda n: n.removeprefix("transformer.")),
        (
            "bert",
            lambda n: n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"),
        ),
    ):
      model, folder = make_model(name), self.folder / name
      drawn = random_weights(model)
      write_hub(folder, model, drawn)
      file = folder / "model.safetensors"
      tensors = safetensors.load_file(file)
      renamed = {old_name(key): value for key, value in tensors.items()}
      self.assertNotEqual(renamed.keys(), tensors.keys())
      safetensors.save_file(renamed, file)
      self.assert_same(weights.open_weights(folder, model), model, drawn)

  def test_checkpoint_of_another_model(self):
    model, other = make_model("llama"), make_model("llama", tied=False)
    folder = folder_lib.CheckpointFolder(self.folder, keep=1, check_fence=lambda: None)
    name = manifest_lib.CheckpointName(1, 1, 4, "a")
    part = folder.write_part(name, "node0", random_weights(other))
    meta = {"model": dict(other.fingerprint)}
    folder.finish(name, manifest_lib.join([part], order=other.layer_names, meta=meta))
    with self.assertRaisesRegex(
        base.CheckpointError,
        r"model:\n  unknown: head: params/weight \[64, 256\]\n"
        r"  missing: head: params/wte \[256, 64\]",
    ):
      weights.open_weights(self.folder, model)
    with self.assertRaisesRegex(base.CheckpointError, "'llama', not 'qwen'"):
      weights.export_folder(self.folder, name="qwen", out=self.folder, max_file_bytes=1)

  @parameterized.parameters(
      ("meta-llama/Llama-3.2-1B", "`hf download meta-llama/Llama-3.2-1B --local-dir=Llama-3.2-1B`"),
      ("gpt2", "`hf download gpt2 --local-dir=gpt2` downloads it; then give 'gpt2'"),
      ("tests/absent", None),  # The first folder exists.
      ("tests", None),
      ("/absent/gpt2", None),
      ("./gpt2", None),
      ("runs/a/b", None),
  )
  def test_names_of_the_hub_say_how_to_download(self, path, hint):
    with self.assertRaises(base.CheckpointError) as caught:
      weights.open_weights(path, make_model("gpt2"))
    self.assertNotIn("\n", str(caught.exception))
    if hint is None:
      self.assertNotIn("hf download", str(caught.exception))
    else:
      self.assertIn(hint, str(caught.exception))

  def test_refuses(self):
    with self.assertRaisesRegex(base.CheckpointError, "no weights in"):
      weights.open_weights(self.folder, make_model("gpt2"))
    with self.assertRaisesRegex(ValueError, "'gtp2'; did you mean 'gpt2'"):
      weights.import_folder(self.folder, name="gtp2", out=self.folder)
    with self.assertRaisesRegex(ValueError, "attention_bias=False"):
      hub_config.make_config(make_model("gpt2", attention_bias=False).fingerprint)
    write_hub(self.folder / "a", make_model("llama"), random_weights(make_model("llama")))
    with self.assertRaisesRegex(ValueError, "There are weights in"):
      write_hub(self.folder / "a", make_model("llama"), {})
    shutil.copyfile(self.folder / "a" / "config.json", self.folder / "a" / "model.safetensors")
    with self.assertRaisesRegex(base.CheckpointError, "Cannot read .*model.s"):
      weights.open_weights(self.folder / "a", make_model("llama"))

  @parameterized.parameters(
      ("config.json", {"rope_scaling": "linear"}, "Cannot use .*config.json: a"),
      ("config.json", {"head_dim": None, "hidden_size": "4"}, "wrong type"),
      ("config.json", {"num_attention_heads": []}, "num_attention_heads=\\[\\]"),
      ("model.safetensors.index.json", {}, "weight_map must name .* got None"),
      (
          "model.safetensors.index.json",
          {"weight_map": {"a": 1}},
          "weight_map must name .* got {'a': 1}",
      ),
      (
          "model.safetensors.index.json",
          {"weight_map": {"a": "b.safetensors"}},
          "Cannot read .*b.safetensors",
      ),
  )
  def test_damaged(self, name, content, message):
    model = make_model("llama")
    write_hub(self.folder, model, random_weights(model))
    file = self.folder / name
    if name.endswith(".index.json"):
      one = self.folder / "model.safetensors"
      one.rename(self.folder / "model-00001-of-00001.safetensors")
    if file.exists():
      content = json.loads(file.read_text()) | content
    file.write_text(json.dumps(content))
    with self.assertRaisesRegex(base.CheckpointError, message):
      weights.open_weights(self.folder, model)

  def test_command(self):
    model, out = make_model("qwen"), io.StringIO()
    self.enterContext(contextlib.chdir(self.folder))
    hub, ours, back = map(pathlib.Path, ("hub", "ours", "back"))
    write_hub(hub, model, random_weights(model))
    for direction, path, to in (("from_", hub, ours), ("to", ours, back)):
      given = {direction: "hf", "model": "qwen", "path": str(path), "out": str(to)}
      with contextlib.redirect_stdout(out):
        convert.main(convert.ConvertFlags(**given))
    self.assertEqual(
        (hub / "model.safetensors").read_bytes(), (back / "model.safetensors").read_bytes()
    )
    self.assertIn(f"{back}: qwen, 53,472 parameters", out.getvalue())
    with self.assertRaisesRegex(ValueError, "Give --from or --to: hf or peft"):
      convert.main(convert.ConvertFlags(model="qwen", path="a", out="b"))

  def test_kinds_of_rotation(self):
    family = hub_config.family_of("llama")
    config = hub_config.make_config(make_model("llama").fingerprint)
    slowed = config["rope_scaling"] | {"factor": 2.0}
    for rope, factor in (
        ({"rope_scaling": slowed}, 2.0),
        ({"rope_scaling": None, "rope_parameters": slowed}, 2.0),
        ({"rope_scaling": None}, 1.0),
    ):
      options, problems = hub_config.read_options(family, config | rope)
      self.assertEqual(problems, [])
      self.assertEqual(options["rope_factor"], factor)
    for rope, problem in (
        ({"rope_parameters": slowed | {"factor": 4.0}}, "config.json has factor=2.0 and also 4.0"),
        (
            {"rope_parameters": slowed, "rope_theta": 1.0},
            "config.json has rope_theta=1.0 and also 5.0",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}},
            "config.json has rope_scaling and other rope_parameters",
        ),
        (
            {"rope_scaling": slowed | {"type": "linear"}},
            "config.json has rope_type='linear' and also 'llama3'",
        ),
    ):
      if "rope_theta" in str(rope):
        rope["rope_parameters"]["rope_theta"] = 5.0
      given = {"rope_scaling": slowed, "rope_theta": 5.0} | rope
      _, problems = hub_config.read_options(family, config | given)
      self.assertEqual(problems, [problem])
    slowed = {k: v for k, v in slowed.items() if k != "rope_theta"}
    slowed["type"] = "yarn"
    del slowed["rope_type"]
    _, problems = hub_config.read_options(family, config | {"rope_scaling": slowed})
    self.assertEqual(problems, ["config.json has rope_type='yarn', must be 'llama3'"])
