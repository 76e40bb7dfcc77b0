"""Outputs and gradients equal those of `transformers`; needs the extra `peers`."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.exchange import families, weights
from bamboo_jax.models import zoo
from bamboo_jax.models.text import llama
from tests import folders, late, plain, samples

torch = late.Library("torch")
transformers = late.Library("transformers")

S, L, V = 3, 12, 40  # Examples, tokens, vocabulary.
_LLAMA = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "vocab_size": V,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
_SLOWED = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def make_peer(name, changes, *, noise=0.1):
  """Returns a small model of the library with random parameters."""
  torch.manual_seed(0)
  lib = transformers
  if name == "gpt2":
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": V}
    config = lib.GPT2Config(**sizes | {"n_positions": 16} | changes)
    model = lib.GPT2LMHeadModel(config)
  elif name == "bert":
    others = ("rms_norm_eps", "num_key_value_heads", "head_dim")
    sizes = {k: v for k, v in _LLAMA.items() if k not in others}
    sizes["intermediate_size"] = 64
    model = lib.BertForPreTraining(lib.BertConfig(**sizes, **changes))
  elif name == "llama":
    model = lib.LlamaForCausalLM(lib.LlamaConfig(**_LLAMA | changes))
  else:
    model = lib.Qwen3ForCausalLM(lib.Qwen3Config(**_LLAMA, **changes))
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(noise * torch.randn_like(parameter))
  return model.eval()


def make_batch(name):
  """Returns a microbatch, and the same as arguments of the library."""
  rng = np.random.default_rng(1)
  tokens = rng.integers(0, V, (S, L + 1)).astype(np.int32)
  if name != "bert":
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    return {"inputs": inputs, "targets": targets}, {"input_ids": inputs, "targets": targets}
  is_text = (np.arange(L) < np.array([[L], [L - 3], [5]])).astype(np.int32)
  places = np.array([[1, 4, 11], [2, 3, 8], [1, 4, 0]], np.int32)
  targets = rng.integers(0, V, places.shape).astype(np.int32)
  targets[2, 2] = -1
  labels = np.full((S, L), -100)
  for row, place, target in zip(range(S), places, targets, strict=True):
    labels[row, place[target >= 0]] = target[target >= 0]
  batch = {
      "inputs": tokens[:, :-1],
      "segments": (np.arange(L) > 3).astype(np.int32)[None].repeat(S, 0),
      "is_text": is_text,
      "places": places,
      "targets": targets,
      "is_random": np.array([0, 1, 0], np.int32),
  }
  return batch, {
      "input_ids": batch["inputs"],
      "token_type_ids": batch["segments"],
      "attention_mask": is_text,
      "labels": labels,
      "next_sentence_label": batch["is_random"],
  }


def peer_loss(peer, arguments):
  tensors = {k: torch.tensor(v) for k, v in arguments.items()}
  tensors = {k: t if t.is_floating_point() else t.long() for k, t in tensors.items()}
  if "labels" in tensors:
    return peer(**tensors).loss
  targets = tensors.pop("targets")
  logits = peer(**tensors).logits
  return torch.nn.functional.cross_entropy(logits.reshape(-1, V), targets.reshape(-1))


class PeersTest(folders.FolderCase):

  @parameterized.parameters(
      ("gpt2", {}),
      *samples.draw(
          (
              ("bert", {}),
              ("llama", {"rope_parameters": _SLOWED}),
              ("qwen", {"tie_word_embeddings": True}),
          ),
          1,
      ),
  )
  def test_outputs_and_gradients(self, name, changes):
    folder = self.folder
    peer = make_peer(name, changes)
    peer.save_pretrained(folder, max_shard_size="8KB")
    self.assertGreater(len([*folder.glob("*.safetensors")]), 1)
    model = weights.import_folder(folder, name=name, out=folder / "ours")
    options = {"sequence_length": L} | ({"num_masked": 3} if name == "bert" else {})
    model = zoo.make_model(**{**model.fingerprint, **options})
    variables_of = weights.open_weights(folder / "ours", model)
    variables = {n: variables_of(n) for n in model.layer_names}
    params = {n: v.params for n, v in variables.items()}
    stats = {n: v.stats for n, v in variables.items()}
    batch, arguments = make_batch(name)

    def loss_fn(params):
      loss = plain.run_layers(model, params, batch, stats=stats)
      return loss.total / loss.weight

    batch = jax.tree.map(jnp.asarray, batch)
    if "rope_parameters" in changes:
      shape = llama.LlamaShape(**{k: v for k, v in model.fingerprint.items() if k != "name"})
      speeds = peer.model.rotary_emb.inv_freq.numpy()
      np.testing.assert_allclose(llama.rotation_speeds(shape), speeds, 1e-5)
    loss, grads = jax.jit(jax.value_and_grad(loss_fn))(params)
    want = peer_loss(peer, arguments)
    want.backward()
    self.assertAlmostEqual(float(loss), want.item(), delta=1e-4)
    self.assertGreater(float(loss), 1.0)
    for layer in model.layers:  # Copies of tied parameters have each a part.
      for tie in layer.ties:
        grads[tie.layer][tie.layer_param] += grads[layer.name].pop(tie.param)
    gradients = {k: p.grad.numpy() for k, p in peer.named_parameters()}
    checked = set()
    for rule in families.rules_of(model.fingerprint, families.shapes_of(model)):
      got = grads[rule.layer]
      for part in rule.array.split("/")[1:]:
        got = got.get(part) if got else None
      if got is not None:
        want = rule.to_ours([gradients[t] for t in rule.tensors], got.shape)
        np.testing.assert_allclose(got, want, atol=1e-4, err_msg=str(rule))
        self.assertGreater(np.abs(want).max(), 1e-3, rule)
        checked |= set(rule.tensors)
    self.assertEqual(checked, gradients.keys())
    self.assert_loads(folder / "ours", name, peer)

  def assert_loads(self, path, name, peer):
    """The library loads an export of `path`, and has the weights of `peer`."""
    out = path.parent / "back"
    weights.export_folder(path, name=name, out=out, max_file_bytes=8000)
    auto = transformers.AutoModelForCausalLM
    auto = transformers.BertForPreTraining if name == "bert" else auto
    again, info = auto.from_pretrained(out, output_loading_info=True)
    self.assertIsInstance(again, type(peer))
    self.assertFalse(info["missing_keys"] or info["unexpected_keys"], info)
    want, got = peer.state_dict(), again.state_dict()
    self.assertEqual(got.keys(), want.keys())
    for key, value in want.items():
      np.testing.assert_array_equal(got[key].numpy(), value.numpy())
