"""Tokenizers travel with weights."""

import dataclasses
import functools
import json
import pathlib
import shutil

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.checkpoint import manifest as manifest_lib
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

  def found(self, path):
    """Returns the folder of each file that belongs to the weights in `path`."""
    return [f.parent for f in weights.find_companions(self.folder / path).values()]

  def names(self, folder):
    return sorted(p.name for p in (self.folder / folder).iterdir())

  def test_there_and_back(self):
    model = t.make_model("qwen")
    files = ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    hub = self.write("hub", *files, "README.md", "pytorch_model.bin")
    t.write_hub(hub, model, t.random_weights(model))
    ours, out = self.folder / "ours", self.folder / "none"
    weights.import_folder(hub, name="qwen", out=ours)
    name = manifest_lib.find_newest(ours).name
    self.assertEqual(self.names("ours"), ["0", name, *files])
    export = functools.partial(weights.export_folder, name="qwen", max_file_bytes=1 << 30)
    for path, tokenizer, found in (
        (ours, None, files),
        (ours / "0", None, files),
        (ours, self.write("other", "tokenizer.model"), [files[0], "tokenizer.model"]),
    ):
      back = self.folder / f"{path.name} {len(found)}"
      export(path, out=back, tokenizer=tokenizer)
      self.assertEqual(self.names(back), sorted([*found, "config.json", "model.safetensors"]))
    self.assertEqual((self.folder / "0 3" / files[1]).read_text(), "hub tokenizer.json")
    with self.assertRaisesRegex(ValueError, "no tokenizer file in .*/0.$"):
      export(ours, out=out, tokenizer=ours / "0")
    self.assertFalse(out.exists())

  @parameterized.parameters("run", "run/checkpoints", "run/checkpoints/40")
  def test_folders_that_a_run_names(self, path):
    hub = self.write("hub", "tokenizer.json")
    text = self.write("text", "tokenizer.json")
    self.write("run/checkpoints/40")
    for config, want in (
        ({"init_from": None, "data": {"options": {}}}, None),
        ({"init_from": str(hub), "data": {"options": {}}}, hub),
        ({"init_from": None, "data": {"options": {"tokenizer": f"{text}/tokenizer.json"}}}, text),
        ({"architectures": ["GPT2LMHeadModel"]}, None),
    ):
      self.run_config("run", **config)
      self.assertEqual(self.found(path), [want] if want else [])

  def test_a_run_that_began_with_another(self):
    hub = self.write("hub", "vocab.txt")
    self.run_config("first", init_from=str(hub))
    self.run_config("second", init_from=str(self.folder / "first"))
    self.assertEqual(self.found("second"), [hub])

  def test_a_folder_that_is_gone(self):
    self.run_config("run", init_from=str(self.folder / "gone"))
    with self.assertLogs("absl", "WARNING") as logs:
      self.assertEqual(self.found("run"), [])
    self.assertLen(logs.output, 1)
    self.assertIn(f"names {self.folder / 'gone'}, which", logs.output[0])
    pathlib.Path(self.folder, "run", "config.json").write_text("{")
    with self.assertRaisesRegex(base.CheckpointError, "Cannot read .*config.j"):
      weights.find_companions(self.folder / "run")

  def test_files_around_a_workdir_are_others(self):
    self.write(".", "vocab.txt")
    self.write("run/checkpoints/40")
    self.assertEqual(self.found("run/checkpoints"), [])

  def test_a_model_without_a_tokenizer(self):
    """Its settings of generation travel beside the tokenizer of the text."""
    hub = self.write("hub", "generation_config.json")
    text = self.write("text", "tokenizer.json", "tokenizer_config.json")
    other = self.write("other", "tokenizer.model")
    self.run_config("run", init_from=str(hub), data={"options": {"tokenizer": str(text)}})
    self.assertEqual(self.found("run"), [text, text, hub])
    files = weights.find_companions(self.folder / "run", other)
    self.assertEqual([file.parent for file in files.values()], [hub, other])

  def test_adapters(self):
    """Those of the model without adapters, unless adapters have their own."""
    self.write("base", "tokenizer.json", "generation_config.json")
    adapter = self.write("adapter")
    self.run_config("run", init_from=str(adapter))
    config = {"base_model_name_or_path": str(self.folder / "base")}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    folders = [self.folder / "base"] * 2
    self.assertEqual(self.found("run"), folders)
    folders[0] = self.write("adapter", "tokenizer.json")
    self.assertEqual(self.found("run"), folders)

  def test_ids_of_special_tokens(self):
    """They are those of the import, whatever has happened in between."""
    model, hub = t.make_model("llama"), self.folder / "hub"
    t.write_hub(hub, model, t.random_weights(model))
    file = hub / "config.json"
    config = json.loads(file.read_text())
    ids_of = lambda config: {k: v for k, v in config.items() if k.endswith("_token_id")}
    for ids in (
        {"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": 0},
        {"eos_token_id": None},
        {},  # The defaults of the class hold.
    ):
      kept = {k: config[k] for k in config.keys() - ids_of(config)}
      file.write_text(json.dumps(kept | ids))
      folder = self.folder / f"{len(ids)}"
      weights.import_folder(hub, name="llama", out=folder / "a")
      # A run that begins with the import, and one with the folder.
      for name, first in (("b", folder / "a"), ("c", hub)):
        shutil.copytree(folder / "a", folder / name / "checkpoints")
        path = manifest_lib.find_newest(folder / name)
        manifest = manifest_lib.read_manifest(path)
        meta = {"model": manifest.meta["model"], "config": {"init_from": str(first)}}
        path.write_bytes(manifest_lib.render(dataclasses.replace(manifest, meta=meta)))
      for name in "abc":
        out = folder / "out" / name
        weights.export_folder(folder / name, name="llama", out=out, max_file_bytes=1 << 30)
        self.assertEqual(ids_of(json.loads((out / "config.json").read_text())), ids, name)
