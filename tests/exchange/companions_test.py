"""Tokenizers travel with weights."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.checkpoint import manifest as manifest_lib
from bamboo_jax.exchange import weights
from tests import folders
from tests.exchange import weights_test as t

_BOTH = "hub/tokenizer.json text/tokenizer.json"
_TEXT = {"data": {"options": {"tokenizer": "text/tokenizer.json"}}}
_OF_HUB, _OF_TEXT, _PLAIN = (
    {"run/config.json": config}
    for config in ({"init_from": "hub"}, _TEXT, {"init_from": None, "data": {"options": {}}})
)
_BASE = "base/tokenizer.json base/generation_config.json"
_ADAPTED = {
    "run/config.json": {"init_from": "adapter"},
    "adapter/adapter_config.json": {"base_model_name_or_path": "base"},
}
# A model without a tokenizer: its settings of generation travel beside that of the text.
_APART = "hub/generation_config.json text/tokenizer.json text/tokenizer_config.json"
_OF_BOTH = {"run/config.json": _TEXT | {"init_from": "hub"}}


class CompanionsTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.enterContext(contextlib.chdir(self.folder))

  def write(self, files, configs=None):
    """Writes files with their paths in them, and those of JSON."""
    texts = {name: name for name in files.split()}
    texts |= {name: json.dumps(config) for name, config in (configs or {}).items()}
    for name, text in texts.items():
      path = pathlib.Path(name)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)

  def test_there_and_back(self):
    model = t.make_model("qwen")
    files = ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    self.write(" ".join(f"hub/{name}" for name in (*files, "README.md", "pytorch_model.bin")))
    self.write("other/tokenizer.model")
    hub, ours, other, none = map(pathlib.Path, ("hub", "ours", "other", "none"))
    t.write_hub(hub, model, t.random_weights(model))
    weights.import_folder(hub, name="qwen", out=ours)
    name = manifest_lib.find_newest(ours).name
    self.assertEqual(sorted(os.listdir(ours)), ["0", name, *files])
    export = functools.partial(weights.export_folder, name="qwen", max_file_bytes=1 << 30)
    for path, tokenizer, found in (
        (ours, None, files),
        (ours / "0", None, files),
        (ours, other, [files[0], "tokenizer.model"]),
    ):
      back = pathlib.Path(f"{path.name} {len(found)}")
      export(path, out=back, tokenizer=tokenizer)
      self.assertCountEqual(os.listdir(back), [*found, "config.json", "model.safetensors"])
    self.assertEqual(pathlib.Path("0 3", files[1]).read_text(), "hub/tokenizer.json")
    with self.assertRaisesRegex(ValueError, "no tokenizer file in ours/0.$"):
      export(ours, out=none, tokenizer=ours / "0")
    self.assertFalse(none.exists())

  @parameterized.named_parameters(
      # Files, and others of JSON; then a path, and the folder of each file that belongs to it.
      ("no_source", _BOTH, _PLAIN, "run", ""),
      ("a_model", _BOTH, _OF_HUB, "run", "hub"),
      ("checkpoints", _BOTH, _OF_HUB, "run/checkpoints", "hub"),
      ("a_checkpoint", _BOTH, _OF_HUB, "run/checkpoints/40", "hub"),
      ("a_text", _BOTH, _OF_TEXT, "run", "text"),
      ("no_config_of_a_run", _BOTH, {"run/config.json": {"architectures": ["A"]}}, "run", ""),
      ("another_run", _BOTH, _OF_HUB | {"next/config.json": {"init_from": "run"}}, "next", "hub"),
      ("files_around_a_workdir", "vocab.txt", {}, "run/checkpoints", ""),
      ("apart", _APART, _OF_BOTH, "run", "text text hub"),
      ("given", f"{_APART} other/tokenizer.model", _OF_BOTH, "run", "hub other", "other"),
      ("adapters", _BASE, _ADAPTED, "run", "base base"),
      ("their_own", f"{_BASE} adapter/tokenizer.json", _ADAPTED, "run", "adapter base"),
  )
  def test_find(self, files, configs, path, want, tokenizer=None):
    self.write(files, configs)
    found = weights.find_companions(path, tokenizer)
    self.assertEqual([file.parent.name for file in found.values()], want.split())

  def test_a_folder_that_is_gone(self):
    self.write("", {"run/config.json": {"init_from": "gone"}})
    with self.assertLogs("absl", "WARNING") as logs:
      self.assertEmpty(weights.find_companions("run"))
    self.assertLen(logs.output, 1)
    self.assertIn(f"names {pathlib.Path.cwd()}/gone, which", logs.output[0])
    pathlib.Path("run/config.json").write_text("{")
    with self.assertRaisesRegex(base.CheckpointError, "Cannot read .*config.j"):
      weights.find_companions("run")

  def test_ids_of_special_tokens(self):
    """They are those of the import, whatever has happened in between."""
    model, hub = t.make_model("llama"), self.folder / "hub"
    t.write_hub(hub, model, t.random_weights(model))
    file = hub / "config.json"
    config = json.loads(file.read_text())
    ids_of = lambda config: {k: v for k, v in config.items() if k.endswith("_token_id")}
    for ids in (
        {"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": 0},
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
