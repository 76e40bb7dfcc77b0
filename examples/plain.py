"""Trains plain JAX functions on nodes that may die: no framework, no pipeline.

Every node holds the whole model and computes its share of the batch. Run it:

    python examples/plain.py

or, each node a process of its own that may really be killed:

    bamboo cluster --config=examples/plain.py --workdir=runs/plain_cluster
"""

import jax
import jax.numpy as jnp
import numpy as np

import bamboo_jax


def init(key):
  keys = jax.random.split(key)
  return {
      "hidden": jax.random.normal(keys[0], (8, 32)) / 3,
      "out": jax.random.normal(keys[1], (32, 1)) / 6,
  }


def loss(params, batch):
  hidden = jax.nn.relu(batch["x"] @ params["hidden"])
  return jnp.mean((hidden @ params["out"] - batch["y"]) ** 2)


def make_model():
  return bamboo_jax.from_loss(init, loss, batch_keys=("x", "y"))


def make_data():
  x = np.random.default_rng(0).standard_normal((4096, 8), np.float32)
  return {"x": x, "y": np.sin(x.sum(axis=1, keepdims=True))}


def get_config():
  config = bamboo_jax.get_config("copies")
  config.num_steps = 20
  config.model.name = f"{__file__}:make_model"
  config.data.name = f"{__file__}:make_data"
  config.optimizer.learning_rate = 1e-2
  return config


if __name__ == "__main__":
  faults = ["5,0/0,1,kill", "9,2/0,reduce,kill"]  # Two of four nodes die.
  result = bamboo_jax.train(get_config(), workdir="runs/plain", faults=faults)
  print(result)
