"""Weights written for `transformers` are read again, to the bit."""

import contextlib
import functools
import io
import json
import pathlib
import shutil

from absl import flags
from absl.testing import flagsaver
from absl.testing import parameterized
import jax
import numpy as np
from safetensors import numpy as safetensors

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.checkpoint import directory
from bamboo_jax.checkpoint import manifest as manifest_lib
from bamboo_jax.exchange import hub_config
from bamboo_jax.exchange import hub_folder
from bamboo_jax.exchange import names
from bamboo_jax.exchange import weights
from bamboo_jax.launch import convert
from bamboo_jax.models import zoo
from tests import folders

_NORM = "resnet.embedder.embedder.normalization"


@functools.cache
def make_model(name, **options):
  options |= {"stem": 4} if name == "resnet" else {"num_blocks": 1}
  return zoo.make_model(name, variant="tiny", **options)


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
  hub_folder.write(
      path,
      model,
      read=drawn.__getitem__,
      max_file_bytes=max_file_bytes,
  )


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
      ("resnet", "resnet", {}),
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
    keys |= {"attention_dropout_rate", "image_size"}
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
              "  config.json has activation_function='relu', must be "
              "'gelu_new'",
              "  config.json has n_head=2, the model has num_heads=4",
              "  unknown: more [3]",
              "  missing: transformer.ln_f.bias [64]",
              "  shape: transformer.wpe.weight is [7, 64], must be [32, 64]",
          ],
      ),
      (
          *("resnet", "resnet", f"{_NORM}.running_mean"),
          {
              f"{_NORM}.num_batches_tracked": np.zeros((), np.int64),
              "classifier.1.weight": np.zeros((7, 128), np.float32),
          },
          {"hidden_sizes": [32, 64, 99], "layer_type": "basic"},
          [
              "  config.json has layer_type='basic', must be 'bottleneck'",
              "  config.json has hidden_sizes=[32, 64, 99], must be "
              "[32, 64, 128]",
              "  shape: classifier.1.weight is [7, 128], must be [10, 128]",
              f"  missing: {_NORM}.running_mean [8]",
          ],
      ),
  )
  def test_names_all_that_does_not_fit(self, name, gone, added, options, want):
    model = make_model(name)
    write_hub(self.folder, model, random_weights(model))
    file, config = (
        self.folder / part for part in ("model.safetensors", "config.json")
    )
    tensors = safetensors.load_file(file)
    del tensors[gone]
    safetensors.save_file(tensors | added, file)
    config.write_text(json.dumps(json.loads(config.read_text()) | options))
    with self.assertRaises(base.CheckpointError) as caught:
      weights.open_weights(self.folder, model)
    self.assertEqual(str(caught.exception).splitlines()[1:], want)

  def test_names_of_other_writers(self):
    """As in the files of the first releases of these models."""
    for name, old_name in (
        ("gpt2", lambda n: n.removeprefix("transformer.")),
        (
            "bert",
            lambda n: n.replace("Norm.weight", "Norm.gamma").replace(
                "Norm.bias", "Norm.beta"
            ),
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
    part = directory.write_part(
        self.folder / "4", "node0", random_weights(other), step=4
    )
    meta = {"model": dict(other.fingerprint)}
    manifest = manifest_lib.join([part], order=other.layer_names, meta=meta)
    manifest_lib.write_manifest(self.folder / "4", manifest)
    with self.assertRaisesRegex(
        base.CheckpointError,
        r"model:\n  unknown: head: params/weight \[64, 256\]\n"
        r"  missing: head: params/wte \[256, 64\]",
    ):
      weights.open_weights(self.folder, model)
    with self.assertRaisesRegex(base.CheckpointError, "'llama', not 'qwen'"):
      weights.export_folder(
          self.folder, name="qwen", out=self.folder, max_file_bytes=1
      )

  def test_refuses(self):
    with self.assertRaisesRegex(base.CheckpointError, "no weights in"):
      weights.open_weights(self.folder, make_model("gpt2"))
    with self.assertRaisesRegex(ValueError, "'gtp2'; did you mean 'gpt2'"):
      weights.import_folder(self.folder, name="gtp2", out=self.folder)
    for name, option, value in (
        ("gpt2", "attention_bias", False),
        ("resnet", "norm", "group"),
    ):
      with self.assertRaisesRegex(ValueError, f"{option}={value}"):
        model = make_model(name, **{option: value})
        hub_config.make_config(model.fingerprint)
    write_hub(
        self.folder / "a",
        make_model("llama"),
        random_weights(make_model("llama")),
    )
    with self.assertRaisesRegex(ValueError, "There are weights in"):
      write_hub(self.folder / "a", make_model("llama"), {})
    shutil.copyfile(
        self.folder / "a" / "config.json",
        self.folder / "a" / "model.safetensors",
    )
    with self.assertRaisesRegex(base.CheckpointError, "Cannot read .*model.s"):
      weights.open_weights(self.folder / "a", make_model("llama"))

  @parameterized.parameters(
      (
          "config.json",
          {"rope_scaling": "linear"},
          "Cannot use .*config.json: a",
      ),
      ("config.json", {"head_dim": None, "hidden_size": "4"}, "another kind"),
      (
          "config.json",
          {"num_attention_heads": []},
          "num_attention_heads=\\[\\]",
      ),
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
    flags.FLAGS.mark_as_parsed()
    for direction, path, to in (("from", hub, ours), ("to", ours, back)):
      with flagsaver.flagsaver(
          **{direction: "hf"}, model="qwen", path=str(path), out=str(to)
      ):
        with contextlib.redirect_stdout(out):
          convert.main()
    self.assertEqual(
        (hub / "model.safetensors").read_bytes(),
        (back / "model.safetensors").read_bytes(),
    )
    self.assertIn(f"{back}: qwen, 53,472 parameters", out.getvalue())
    with self.assertRaisesRegex(ValueError, "Give --from=hf or --to=hf"):
      convert.main()

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
    slowed["type"] = "yarn"
    del slowed["rope_type"]
    _, problems = hub_config.read_options(
        family, config | {"rope_scaling": slowed}
    )
    self.assertEqual(
        problems, ["config.json has rope_type='yarn', must be 'llama3'"]
    )
