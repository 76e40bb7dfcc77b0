"""Runs on files of one's own, from a folder of Hugging Face."""

import json

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.training import run as run_lib
from bamboo_jax.training.setup import accept
from configs import finetune
from tests import folders, tiny
from tests.exchange import weights_test

_LENGTH = 8


class OwnFilesTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    sizes = {"num_blocks": 2, "width": 16, "vocab_size": 40, "positions": 16}
    model = weights_test.make_model("gpt2", **sizes, sequence_length=16)
    weights_test.write_hub(self.folder / "hub", model, weights_test.random_weights(model))
    rng = np.random.default_rng(0)
    self.tokens = rng.integers(0, 40, 1000).astype(np.uint16)
    self.path = self.folder / "train.bin"
    self.tokens.tofile(self.path)

  def make_config(self, **changes):
    config = tiny.make_config(
        init_from=str(self.folder / "hub"),
        model__name="init_from",
        model__options={"sequence_length": _LENGTH, "dropout_rate": 0.0},
        data__name=str(self.path),
        **changes,
    )
    return accept.accept(config)

  def train(self, **changes):
    run_lib.train_and_evaluate(self.make_config(**changes), workdir=str(self.folder / "run"))

  def test_a_resume_names_a_file_that_has_changed(self):
    self.train(num_steps=2)
    summary = json.loads((self.folder / "run" / "summary.json").read_text())
    # 8 samples of 124 windows, of which 2 are held out.
    self.assertEqual(summary["epochs"], {"data": 8 / 122})
    manifest = json.loads((self.folder / "run" / "data.json").read_text())
    self.assertEqual([f["name"] for f in manifest["files"]], ["train.bin"])
    self.tokens[500] ^= 1
    self.tokens.tofile(self.path)
    with self.assertRaisesRegex(
        base.CheckpointError, r"of another run: it has data.files.train.bin="
    ):
      self.train(num_steps=3)

  def test_a_folder_gives_model_and_tokenizer(self):
    (self.folder / "hub" / "tokenizer.json").write_text("{}")
    config = self.make_config()
    self.assertEqual(config.model.name, "gpt2")
    self.assertEqual(config.model.options["num_blocks"], 2)
    self.assertEqual(config.model.options["sequence_length"], _LENGTH)
    self.assertEqual(config.data.options["tokenizer"], str(self.folder / "hub"))
    config = finetune.get_config()
    config.init_from = str(self.folder / "hub")
    with self.assertLogs("absl", "WARNING") as logs:
      config = accept.accept(config)
    self.assertIn(
        "config.model.options.sequence_length=1024 is shortened to 16, the "
        f"positions of the model in {self.folder}/hub.",
        logs.output[0],
    )
    self.assertEqual(config.model.options["sequence_length"], 16)
    self.assertNotIn("tokenizer", config.data.options)  # It has no files.

  @parameterized.parameters(
      (None, None, "needs the option config.init_from"),
      ("absent", None, "must be a folder of Hugging Face .*No such file"),
      ("meta-llama/Llama-3.2-1B", None, "hf download meta-llama/Llama-3.2-1B --local-dir="),
      ("hub", {"model_type": ...}, "hub' must be a .* has a model_type: 'model_type'. For weights"),
      ("hub", {"model_type": "t5"}, "Unknown model_type 't5'"),
  )
  def test_refuses(self, name, changes, message):
    file = self.folder / "hub" / "config.json"
    if changes:
      entries = json.loads(file.read_text()) | changes
      file.write_text(json.dumps({k: v for k, v in entries.items() if v is not ...}))
    config = finetune.get_config()
    config.init_from = name and (name if "/" in name else str(self.folder / name))
    with self.assertRaisesRegex(ValueError, message):
      accept.accept(config)
