"""Training with LoRA equals that of `peft`; needs it and the extra `peers`."""

import json
import re

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.exchange import adapters, weights
from bamboo_jax.launch import convert as convert_lib
from bamboo_jax.models import zoo
from bamboo_jax.training import run as run_lib
from bamboo_jax.training.setup import accept, build
from tests import folders, late, samples, tiny
from tests.exchange import peers_test, weights_test

safetensors = late.Library("safetensors.torch")
torch = late.Library("torch")
transformers = late.Library("transformers")
peft = late.Library("peft")

_RATE = 1e-2


def make_config(folder, **options):
  """Returns the config of a run that begins from `folder`."""
  config = tiny.make_config(
      num_steps=10,
      model__name="init_from",
      model__options={"sequence_length": 8, **options},
      init_from=str(folder),
      data__options__vocab_size=16,
  )
  config.optimizer.update(schedule="constant", learning_rate=_RATE, clip_norm=None)
  return accept.accept(config)


def convert(*, name, path, out, **direction):
  """Runs `bamboo convert`; returns how many parameters it names."""
  with folders.printed() as printed:
    given = {"model": name, "path": str(path), "out": str(out), **direction}
    convert_lib.main(convert_lib.ConvertFlags(**given))
  words = printed.getvalue().split()
  assert words[:2] == [f"{out}:", f"{name},"], words
  return int(words[-2].replace(",", ""))


def train_peer(model, config):
  """Trains a model of `peft` with the batches of the config."""
  batches = build.make_task(config).batches
  trained = [p for p in model.parameters() if p.requires_grad]
  optimizer = torch.optim.AdamW(trained, lr=_RATE, weight_decay=0.1)
  for step in range(config.num_steps):
    parts = [batches.microbatch(step, m) for m in range(2)]
    tokens, targets = (
        torch.tensor(np.concatenate([part[key] for part in parts])).long()
        for key in ("inputs", "targets")
    )
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class AdaptersTest(folders.FolderCase):

  def make_folders(self, name):
    """Makes the folders of a model and of adapters, by the peers."""
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    changes, targets = {
        "llama": ({"tie_word_embeddings": True}, ["q_proj", "down_proj"]),
        "gpt2": (rates, ["c_attn", "c_proj", "c_fc"]),
    }[name]
    # Far from uniform predictions.
    base_model = peers_test.make_peer(name, changes | {"vocab_size": 16}, noise=0.2).train()
    base_model.save_pretrained(self.folder / "base")
    chosen = peft.LoraConfig(
        r=2,
        lora_alpha=3,
        target_modules=targets,
        task_type="CAUSAL_LM",
        init_lora_weights=False,  # Not 0.
    )
    self.peer = peft.get_peft_model(base_model, chosen)
    self.peer.peft_config["default"].base_model_name_or_path = str(self.folder / "base")
    self.peer.save_pretrained(self.folder / "adapter")

  @parameterized.parameters(*zip(samples.draw(("llama", "gpt2"), 1)))
  def test_ten_steps(self, name):
    self.make_folders(name)
    options = {"dropout_rate": 0.0} if name == "gpt2" else {}
    config = make_config(self.folder / "adapter", **options)
    run, states = self.folder / "run", set()
    for folder, stops in ((run, (5, None)), (self.folder / "at_once", (None,))):
      for stop_at in stops:
        run_lib.train_and_evaluate(config, workdir=str(folder), stop_at=stop_at)
      states.add(json.loads((folder / "summary.json").read_text())["state_sha256"])
    self.assertLen(states, 1)
    out, merged = self.folder / "out", self.folder / "merged"
    num_adapted = convert(to="peft", name=name, path=run, out=out)
    num_merged = convert(to="hf", name=name, path=run, out=merged)
    sizes = {key: value.numel() for key, value in self.peer.named_parameters()}
    self.assertEqual(num_adapted, sum(n for key, n in sizes.items() if "lora_" in key))
    self.assertEqual(num_merged, sum(sizes.values()) - num_adapted)
    before = {k: v.clone() for k, v in self.peer.state_dict().items()}
    train_peer(self.peer, config)
    want = self.peer.state_dict()
    got = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(self.folder / "base"), out
    ).state_dict()
    self.assertEqual(got.keys(), want.keys())
    for key, value in want.items():
      np.testing.assert_allclose(got[key], value, atol=1e-5, err_msg=key)
      moved = np.abs(value - before[key]).max().item()
      self.assertEqual(moved > 1e-2, "lora" in key, (key, moved))
    tokens = torch.arange(8)[None]
    whole = transformers.AutoModelForCausalLM.from_pretrained(merged)
    with torch.no_grad():
      np.testing.assert_allclose(whole(tokens).logits, self.peer.eval()(tokens).logits, atol=1e-3)
    # An export is imported as it is, with the base, and exported again.
    again, imported = self.folder / "again", self.folder / "imported"
    convert(from_="peft", name=name, path=out, out=imported)
    convert(to="peft", name=name, path=imported, out=again)
    for file in ("adapter_model.safetensors", "adapter_config.json"):
      self.assertEqual((again / file).read_bytes(), (out / file).read_bytes())
    model = zoo.make_model(name, **weights.read_options(out, name) | {"sequence_length": 8})
    paths = (run, imported, out, self.folder / "base")
    trained, *others, base_of = (weights.open_weights(path, model) for path in paths)
    for layer in model.layer_names:
      params, first = trained(layer).params, base_of(layer).params
      self.assertEqual(first.keys(), {key for key in params if "lora" not in key})
      jax.tree.map(np.testing.assert_array_equal, {key: params[key] for key in first}, first)
      for other in others:
        jax.tree.map(np.testing.assert_array_equal, other(layer).params, params)
    # Later changes of the folder that the run began from change nothing.
    file, later = self.folder / "base" / "model.safetensors", self.folder / "later"
    tensors = {key: value + 1 for key, value in safetensors.load_file(file).items()}
    safetensors.save_file(tensors, file, metadata={"format": "pt"})
    convert(to="hf", name=name, path=run, out=later)
    self.assertEqual((later / file.name).read_bytes(), (merged / file.name).read_bytes())
    run_lib.train_and_evaluate(config.changed({"num_steps": 11}), workdir=str(run))

  def test_rejected(self):
    model = weights_test.make_model("llama", lora_rank=2)
    drawn = weights_test.random_weights(model)
    folder, base_folder = self.folder / "adapter", self.folder / "base"
    weights_test.write_hub(base_folder, adapters.drop_adapters(model), drawn)
    adapters.write(folder, model, read=drawn.__getitem__, base_folder=str(base_folder))
    file = folder / "adapter_config.json"
    good = json.loads(file.read_text())
    for beginning in (True, False, None, "orthogonal", "gaussian"):  # They leave the weights.
      file.write_text(json.dumps({**good, "init_lora_weights": beginning}))
      self.assertEqual(adapters.read_config(folder)[1]["lora_rank"], 2)
    others = [("init_lora_weights", how) for how in ("pissa", "pissa_niter_16")]
    others += [(name, {"q_proj": 4}) for name in ("rank_pattern", "alpha_pattern")]
    others += [(name, True) for name in ("use_dora", "use_rslora", "lora_bias", "a_new_entry")]
    others += [("lora_dropout", 0.1), ("layers_to_transform", 0), ("task_type", "SEQ_CLS")]
    others.append(("modules_to_save", ["lm_head"]))
    for changes, message in (
        *(({k: v}, re.escape(f"{k}={v!r}, which our models do not have")) for k, v in others),
        ({"bias": "all"}, "bias='all', must be 'none'"),
        ({"target_modules": []}, "must be a list of q_proj"),
        ({"peft_type": "IA3"}, "peft_type='IA3', must be 'LORA'"),
        ({"target_modules": ["lm_head"]}, "must be a list of q_proj"),
        ({"base_model_name_or_path": "a/b"}, "'a/b', must be a folder with.*hf download a/b "),
        ({"r": 3}, r"shape: base_model.model.model.layers.0.self_attn.q_proj"),
    ):
      with self.subTest(message):
        file.write_text(json.dumps({**good, **changes}))
        with self.assertRaisesRegex(base.CheckpointError, message):
          weights.import_folder(folder, name="llama", out=self.folder / "no")
