"""Trains a module of flax.nnx on nodes that may die: python examples/nnx.py."""

from flax import nnx
import jax
import numpy as np
import optax

import bamboo_jax


class Net(nnx.Module):

  def __init__(self, rngs):
    self.embed = nnx.Embed(256, 64, rngs=rngs)
    self.norm = nnx.LayerNorm(64, rngs=rngs)
    self.dropout = nnx.Dropout(0.1)
    self.out = nnx.Linear(64, 256, rngs=rngs)

  def __call__(self, tokens, key):
    hidden = self.norm(jax.nn.gelu(self.embed(tokens)))
    hidden = self.dropout(hidden, deterministic=key is None, rngs=key)
    return self.out(hidden)


def init(key):
  return nnx.state(Net(nnx.Rngs(key)), nnx.Param)  # Only what is trained.


def loss(params, batch, key):
  nnx.update(net := Net(nnx.Rngs(0)), params)
  logits, targets = net(batch["inputs"], key), batch["targets"]
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
  return losses.mean(), {"accuracy": (logits.argmax(-1) == targets).mean()}


def make_model():
  return bamboo_jax.from_loss(init, loss, has_aux=True)


def make_data():
  text = np.frombuffer(open(np.__file__, "rb").read(), np.uint8)
  windows = text[: len(text) // 33 * 33].reshape(-1, 33).astype(np.int32)
  return {"inputs": windows[:, :-1], "targets": windows[:, 1:]}


def get_config():
  config = bamboo_jax.get_config("copies")
  config.num_steps = 20
  config.model.name = f"{__file__}:make_model"
  config.data.name = f"{__file__}:make_data"
  config.optimizer.learning_rate = 1e-2
  return config


if __name__ == "__main__":
  faults = ["5,0/0,1,kill", "9,2/0,reduce,kill"]  # Two of four nodes die.
  result = bamboo_jax.train(get_config(), workdir="runs/nnx", faults=faults)
  print(result)
