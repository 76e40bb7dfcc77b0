"""Weights written for `transformers` are read again, to the bit."""

import functools
import json
import os
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
from bamboo_jax.exchange import families, hub_folder, weights
from bamboo_jax.models import layer as layer_lib, zoo
from tests import folders

_INDEX = "model.safetensors.index.json"


@functools.cache
def make_model(name, **options):
  return zoo.make_model(name, variant="tiny", **{"num_blocks": 1, **options})


def random_weights(model):
  rng = np.random.default_rng(0)
  drawn = {
      layer: {k: rng.standard_normal(s, np.float32) for k, s in arrays.items()}
      for layer, arrays in families.shapes_of(model).items()
  }
  for layer in model.layers:
    for tie in layer.ties:
      owner = drawn[tie.layer][f"params/{tie.layer_param}"]
      drawn[layer.name][f"params/{tie.param}"] = owner
  return drawn


def write_hub(path, model, drawn, max_file_bytes=1 << 30):
  hub_folder.write(path, model, read=drawn.__getitem__, max_file_bytes=max_file_bytes)


class WeightsTest(folders.FolderCase):

  def write(self, name, **options):
    """Writes random weights of a model to the folder; returns both."""
    model = make_model(name, **options)
    drawn = random_weights(model)
    write_hub(self.folder, model, drawn)
    return model, drawn

  def change(self, changes):
    """Writes tensors into the file; those that are None are removed."""
    file = self.folder / "model.safetensors"
    tensors = safetensors.load_file(file) | changes
    safetensors.save_file({k: v for k, v in tensors.items() if v is not None}, file)

  def assert_same(self, model, drawn, folder=None):
    variables_of = weights.open_weights(folder or self.folder, model)
    for layer, arrays in drawn.items():
      like = layer_arrays.shapes_of(variables_of(layer))
      self.assertEqual(like.keys(), arrays.keys())
      restored = layer_lib.restore_leaves(arrays, variables_of(layer))
      jax.tree.map(np.testing.assert_array_equal, variables_of(layer), restored)

  def refuses(self, model, *lines):
    """The weights do not fit the model, for these reasons."""
    with self.assertRaises(base.CheckpointError) as caught:
      weights.open_weights(self.folder, model)
    self.assertEqual(str(caught.exception).splitlines()[1:], [f"  {line}" for line in lines])

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
    self.assertGreater(len([*hub.glob("*.safetensors")]), 1)
    self.assert_same(model, drawn, hub)

    imported = weights.import_folder(hub, name=name, out=ours)
    keys = {"sequence_length", "positions", "dropout_rate", "num_masked"}
    keys |= {"attention_dropout_rate"}
    for key in model.fingerprint.keys() - keys:
      self.assertEqual(imported.fingerprint[key], model.fingerprint[key], key)
    self.assert_same(model, drawn, ours)

    weights.export_folder(ours, name=name, out=back, max_file_bytes=1 << 30)
    want = {}
    for file in sorted(hub.glob("*.safetensors")):
      want |= safetensors.load_file(file)
    got = safetensors.load_file(back / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, got, want)

  def test_names_all_that_does_not_fit(self):
    model, _ = self.write("gpt2")
    self.change(
        {
            "transformer.ln_f.bias": None,
            "transformer.wpe.weight": np.zeros((7, 64), np.float32),
            "more": np.zeros(3, np.float32),
            "transformer.h.0.attn.bias": np.zeros(3, np.float32),  # A mask.
        }
    )
    config = self.folder / "config.json"
    options = {"n_head": 2, "activation_function": "relu"}
    config.write_text(json.dumps(json.loads(config.read_text()) | options))
    self.refuses(
        model,
        "config.json has activation_function='relu', must be 'gelu_new'",
        "config.json has n_head=2, the model has num_heads=4",
        "unknown: more [3]",
        "missing: transformer.ln_f.bias [64]",
        "shape: transformer.wpe.weight is [7, 64], must be [32, 64]",
    )

  @parameterized.parameters(
      ("llama", "lm_head.weight", "model.embed_tokens.weight"),
      ("gpt2", "lm_head.weight", "transformer.wte.weight"),
      ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
      ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
  )
  def test_copies_of_tied_tensors(self, name, copy, original):
    model, drawn = self.write(name)
    value = safetensors.load_file(self.folder / "model.safetensors")[original]
    self.change({copy: value})
    self.assert_same(model, drawn)
    changed = value.copy()
    changed.flat[-1] += 1  # The last number.
    for other in (changed, value[:-1], value.astype(np.float16)):
      self.change({copy: other})
      self.refuses(model, f"{copy} differs from {original}; the model ties them")

  @parameterized.parameters(
      ("bert", "lm_head.weight", True),  # Of another family.
      ("llama", "model.layers.0.mlp.up_proj.weight_scale_inv", True),
      ("qwen", "model.layers.0.self_attn.q_proj.bias", True),
      ("llama", "position_ids", True),  # Of another family.
      ("bert", "bert.embeddings.position_ids", False),
      ("gpt2", "transformer.h.0.attn.masked_bias", False),
      ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", False),
  )
  def test_tensors_are_dropped_only_if_they_have_no_information(self, name, tensor, is_unknown):
    model, drawn = self.write(name)
    self.change({tensor: np.zeros(2, np.float32 if is_unknown else np.int64)})
    if is_unknown:
      self.refuses(model, f"unknown: {tensor} [2]")
    else:
      self.assert_same(model, drawn)

  def test_dtypes_that_need_a_scale(self):
    model, _ = self.write("llama")
    name = "model.norm.weight"
    self.change({name: np.zeros(64, np.int8)})
    file = self.folder / "model.safetensors"
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    for dtype in ("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"):
      header = data[8:end].replace(b'"I8"', b'"%s"' % dtype.encode())
      file.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
      self.refuses(model, f"dtype: {name} is {dtype}, must be one of F64, F32, F16, BF16")

  @parameterized.parameters(np.float64, np.float16)
  def test_other_floats(self, dtype):
    model, drawn = self.write("llama")
    self.change({"model.norm.weight": np.arange(64, dtype=dtype)})
    norm = {"params/norm/scale": np.arange(64, dtype=np.float32)}
    self.assert_same(model, drawn | {"head": drawn["head"] | norm})

  @parameterized.parameters(
      (np.float32, np.nan),
      (np.float32, -np.inf),
      (np.float16, np.inf),
      (np.float64, 1e300),  # Infinite as float32.
  )
  def test_what_is_not_finite_is_rejected_when_read(self, dtype, value):
    model, _ = self.write("gpt2")
    name, out = "transformer.ln_f.weight", self.folder / "out"
    self.change({name: np.array([0] * 63 + [value], dtype)})
    read = weights.open_weights(self.folder, model)
    read("embed")
    file = self.folder / "model.safetensors"
    message = f"^{file}: the tensor {name} has NaN or infinite"
    with self.assertRaisesRegex(base.CheckpointError, message):
      read("head")
    with self.assertRaisesRegex(base.CheckpointError, message):
      weights.import_folder(self.folder, name="gpt2", out=out)
    self.change({name: np.ones(64, np.float32)})
    weights.import_folder(self.folder, name="gpt2", out=out)
    self.assertLen(os.listdir(out / "0"), 1)

  def test_other_safetensors_files(self):
    model, drawn = self.write("llama")
    one = self.folder / "model.safetensors"
    adapter = self.folder / "adapter_model.safetensors"
    safetensors.save_file({"lora": np.zeros(2, np.float32)}, adapter)
    with self.assertLogs("absl", "WARNING") as logs:
      self.assert_same(model, drawn)
    self.assertIn(f"are read from {one.name}; not read: {adapter.name}.", logs.output[0])
    part = one.rename(one.with_name("model-00001-of-00002.safetensors"))
    with self.assertLogs("absl", "WARNING"):  # An index is not needed.
      self.assert_same(model, drawn)
    again = shutil.copyfile(part, part.with_name("model-00002-of-00002.safetensors"))
    message = "occurs twice, in model-00001.* and model-00002"
    with self.assertRaisesRegex(base.CheckpointError, message):
      weights.open_weights(self.folder, model)
    again.unlink()
    part.rename(self.folder / "other.safetensors")
    message = "none of adapter_model.safetensors, other.safetensors is model.saf"
    with self.assertRaisesRegex(base.CheckpointError, message):
      weights.open_weights(self.folder, model)
    adapter.unlink()
    with self.assertNoLogs("absl"):
      self.assert_same(model, drawn)

  def test_names_of_other_writers(self):
    """As in the files of the first releases of these models."""
    betas = lambda n: n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
    for name, old_name in (("gpt2", lambda n: n.removeprefix("transformer.")), ("bert", betas)):
      model, folder = make_model(name), self.folder / name
      drawn = random_weights(model)
      write_hub(folder, model, drawn)
      file = folder / "model.safetensors"
      tensors = safetensors.load_file(file)
      renamed = {old_name(key): value for key, value in tensors.items()}
      self.assertNotEqual(renamed.keys(), tensors.keys())
      safetensors.save_file(renamed, file)
      self.assert_same(model, drawn, folder)

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
      (_INDEX, {}, "weight_map must name .* got None"),
      (_INDEX, {"weight_map": {"a": 1}}, "weight_map must name .* got {'a': 1}"),
      (_INDEX, {"weight_map": {"a": "b.safetensors"}}, "Cannot read .*b.safetensors"),
  )
  def test_damaged(self, name, content, message):
    model, _ = self.write("llama")
    file = self.folder / name
    if name == _INDEX:
      one = self.folder / "model.safetensors"
      one.rename(self.folder / "model-00001-of-00001.safetensors")
    if file.exists():
      content = json.loads(file.read_text()) | content
    file.write_text(json.dumps(content))
    with self.assertRaisesRegex(base.CheckpointError, message):
      weights.open_weights(self.folder, model)
