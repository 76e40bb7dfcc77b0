"""A model as a list of layers, in a pipeline: python examples/layers.py."""

import flax.linen as nn
import jax.numpy as jnp
import optax

import bamboo_jax
from bamboo_jax.models import layer, linen, model


class Embed(nn.Module):

  @nn.compact
  def __call__(self, inputs, batch, *, train):
    return nn.Embed(256, 64)(batch["inputs"])


class Block(nn.Module):

  @nn.compact
  def __call__(self, inputs, batch, *, train):
    hidden = nn.gelu(nn.Dense(128)(nn.LayerNorm()(inputs)))
    return inputs + nn.Dense(64)(hidden)


class Head(nn.Module):

  @nn.compact
  def __call__(self, inputs, batch, *, train):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        nn.Dense(256)(inputs), batch["targets"]
    )
    return layer.Loss(losses.sum(), jnp.float32(losses.size))


def make_model():
  blocks = [linen.LinenLayer(f"block_{i}", Block()) for i in range(3)]
  embed = linen.LinenLayer("embed", Embed(), ("inputs",))
  head = linen.LinenLayer("head", Head(), ("targets",))
  facts = {"name": "mlp", "sequence_length": 32}  # The data has its length.
  return model.Model("mlp", (embed, *blocks, head), facts)


def get_config():
  config = bamboo_jax.get_config("quickstart")
  config.num_steps = 20
  config.model.name = f"{__file__}:make_model"
  config.model.options = {}
  config.pipeline.num_stages = 2  # A node has a copy of the next stage, too.
  config.redundancy.spares = 0
  return config


if __name__ == "__main__":
  faults = ["5,0/0,3,kill", "9,1/1,reduce,kill"]  # Two of four nodes die.
  result = bamboo_jax.train(get_config(), workdir="runs/layers", faults=faults)
  print(result)
