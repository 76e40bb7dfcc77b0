"""Tokenizers travel with weights."""

import json
import pathlib

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.exchange import companions
from bamboo_jax.exchange import weights
from tests import folders
from tests.exchange import weights_test as t


class CompanionsTest(folders.FolderCase):

  def write(self, folder, *names):
    path = self.folder / folder
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
      (path / name).write_text(f"{folder} {name}")
    return path

  def run_config(self, folder, **config):
    path = self.write(folder) / "config.json"
    path.write_text(json.dumps(config))

  def names(self, folder):
    return sorted(p.name for p in (self.folder / folder).iterdir())

  def test_there_and_back(self):
    model = t.make_model("qwen")
    files = [
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    hub = self.write("hub", *files, "README.md", "pytorch_model.bin")
    t.write_hub(hub, model, t.random_weights(model))
    ours, back = self.folder / "ours", self.folder / "back"
    weights.import_folder(hub, name="qwen", out=ours)
    self.assertEqual(self.names("ours"), ["0", *files])
    for path in (ours, ours / "0"):
      out = back / path.name
      weights.export_folder(path, name="qwen", out=out, max_file_bytes=1 << 30)
      self.assertEqual(
          self.names(f"back/{path.name}"),
          sorted([*files, "config.json", "model.safetensors"]),
      )
      self.assertEqual((out / files[1]).read_text(), "hub tokenizer.json")
    other = self.write("other", "tokenizer.model")
    out = back / "other"
    export = dict(name="qwen", max_file_bytes=1 << 30)
    weights.export_folder(ours, out=out, tokenizer=other, **export)
    self.assertEqual(
        self.names("back/other"),
        ["config.json", "model.safetensors", "tokenizer.model"],
    )
    out = back / "none"
    with self.assertRaisesRegex(ValueError, "no tokenizer file in .*/0.$"):
      weights.export_folder(ours, out=out, tokenizer=ours / "0", **export)
    self.assertFalse(out.exists())

  @parameterized.parameters("run", "run/checkpoints", "run/checkpoints/40")
  def test_folders_that_a_run_names(self, path):
    hub = self.write("hub", "tokenizer.json")
    text = self.write("text", "tokenizer.json")
    self.write("run/checkpoints/40")
    for config, want in (
        ({"init_from": None, "data": {"options": {}}}, None),
        ({"init_from": str(hub), "data": {"options": {}}}, hub),
        (
            {
                "init_from": None,
                "data": {"options": {"tokenizer": f"{text}/tokenizer.json"}},
            },
            text,
        ),
        ({"architectures": ["GPT2LMHeadModel"]}, None),
    ):
      self.run_config("run", **config)
      self.assertEqual(companions.find(self.folder / path), want)

  def test_a_run_that_began_with_another(self):
    hub = self.write("hub", "vocab.txt")
    self.run_config("first", init_from=str(hub))
    self.run_config("second", init_from=str(self.folder / "first"))
    self.assertEqual(companions.find(self.folder / "second"), hub)

  def test_a_folder_that_is_gone(self):
    self.run_config("run", init_from=str(self.folder / "gone"))
    with self.assertLogs("absl", "WARNING") as logs:
      self.assertIsNone(companions.find(self.folder / "run"))
    self.assertIn(f"names {self.folder / 'gone'}, which", logs.output[0])
    pathlib.Path(self.folder, "run", "config.json").write_text("{")
    with self.assertRaisesRegex(base.CheckpointError, "Cannot read .*config.j"):
      companions.find(self.folder / "run")

  def test_files_around_a_workdir_are_others(self):
    self.write(".", "vocab.txt")
    self.write("run/checkpoints/40")
    self.assertIsNone(companions.find(self.folder / "run/checkpoints"))
