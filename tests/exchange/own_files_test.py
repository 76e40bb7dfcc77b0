"""Runs on files of one's own, from a folder of Hugging Face."""

import json
import pathlib
import tempfile

from absl.testing import parameterized
import numpy as np
import pytest

from bamboo_jax import base
from bamboo_jax.data import draws
from bamboo_jax.metrics import jsonl
from bamboo_jax.training import run as run_lib
from bamboo_jax.training.setup import accept
from configs import finetune
from tests import tiny
from tests.exchange import peers_test

torch = pytest.importorskip("torch")

_LENGTH, _VOCAB, _RATE = 8, peers_test.V, 0.5


class OwnFilesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    self.peer = peers_test.make_peer("gpt2", rates).train()
    self.peer.save_pretrained(self.folder / "hub")
    rng = np.random.default_rng(0)
    self.tokens = rng.integers(0, _VOCAB, 1000).astype(np.uint16)
    self.path = self.folder / "train.bin"
    self.tokens.tofile(self.path)

  def make_config(self, **changes):
    config = tiny.make_config(
        init_from=str(self.folder / "hub"),
        model__name="init_from",
        model__options={"sequence_length": _LENGTH, "dropout_rate": 0.0},
        data__name=str(self.path),
        optimizer__name="sgd",
        optimizer__options={},
        optimizer__learning_rate=_RATE,
        optimizer__schedule="constant",
        optimizer__clip_norm=None,
        **changes,
    )
    return accept.accept(config)

  def train(self, **changes):
    config = self.make_config(**changes)
    run_lib.train_and_evaluate(config, workdir=str(self.folder / "run"))
    lines = jsonl.read_lines(self.folder / "run" / "metrics.jsonl")
    return [line["loss"] for line in lines if "event" not in line]

  def test_losses_are_those_of_a_plain_loop(self):
    losses = self.train(num_steps=10)
    # The positions of the ten steps, 4 samples each, as the source orders them.
    num_windows = (len(self.tokens) - 1) // _LENGTH
    num_train = num_windows - int(0.02 * num_windows)
    optimizer = torch.optim.SGD(self.peer.parameters(), lr=_RATE)
    wanted = []
    for step in range(10):
      places = draws.shuffle(0, range(4 * step, 4 * step + 4), size=num_train)
      rows = [self.tokens[p * _LENGTH :][: _LENGTH + 1] for p in places]
      rows = torch.tensor(np.array(rows, np.int64))
      logits = self.peer(rows[:, :-1]).logits
      loss = torch.nn.functional.cross_entropy(logits.reshape(-1, _VOCAB), rows[:, 1:].reshape(-1))
      optimizer.zero_grad()
      loss.backward()
      optimizer.step()
      wanted.append(loss.item())
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=1e-5)

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
      ("hub", {"model_type": "t5"}, "Unknown model_type 't5'"),
      ("hub", {"scale_attn_weights": False}, "scale_attn_weights=False, must"),
  )
  def test_refuses(self, name, changes, message):
    file = self.folder / "hub" / "config.json"
    if changes:
      file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    config = finetune.get_config()
    config.init_from = name and (name if "/" in name else str(self.folder / name))
    with self.assertRaisesRegex(ValueError, message):
      accept.accept(config)
