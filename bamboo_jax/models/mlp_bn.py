"""A small next-token network with batch norm, to test statistics."""

import flax.linen as nn
import jax

from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models import linen
from bamboo_jax.models import model as model_lib
from bamboo_jax.models.text import losses

_MOMENTUM = 0.9


def make_mlp_bn(
    *,
    num_blocks: int = 2,
    width: int = 16,
    sequence_length: int = 8,
    vocab_size: int = 32,
) -> model_lib.Model:
  """Returns the network; a microbatch is as that of GPT-2."""
  fingerprint = {
      "name": "mlp_bn",
      "num_blocks": num_blocks,
      "width": width,
      "sequence_length": sequence_length,
      "vocab_size": vocab_size,
  }
  for name, value in fingerprint.items():
    if name != "name" and value < 1:
      raise ValueError(f"{name} must be at least 1, got {value}.")
  embed = Embed(vocab_size, width)
  layers = [linen.LinenLayer("embed", embed, ("inputs",))]
  for block in range(num_blocks):
    layers.append(linen.LinenLayer(f"block_{block:02d}", Block()))
  layers.append(linen.LinenLayer("head", Head(vocab_size), ("targets",)))
  sample = model_lib.text_sample(sequence_length)
  return model_lib.Model("mlp_bn", tuple(layers), fingerprint, sample)


class Embed(nn.Module):
  """Embeds tokens."""

  vocab_size: int
  width: int

  @nn.compact
  def __call__(
      self, inputs: None, batch: layer_lib.Batch, *, train: bool
  ) -> dict[str, jax.Array]:
    """Returns the embeddings twice: a stream, and the skip connection."""
    embedded = nn.Embed(self.vocab_size, self.width)(batch["inputs"])
    return {"h": embedded, "skip": embedded}


class Block(nn.Module):
  """A product, batch normalisation and ReLU."""

  @nn.compact
  def __call__(
      self,
      inputs: dict[str, jax.Array],
      batch: layer_lib.Batch,
      *,
      train: bool,
  ) -> dict[str, jax.Array]:
    """Returns inputs of the same structure."""
    h = nn.Dense(inputs["h"].shape[-1])(inputs["h"])
    h = nn.BatchNorm(use_running_average=not train, momentum=_MOMENTUM)(h)
    return {"h": nn.relu(h), "skip": inputs["skip"]}


class Head(nn.Module):
  """Adds the skip connection, projects, and compares with the targets."""

  vocab_size: int

  @nn.compact
  def __call__(
      self,
      inputs: dict[str, jax.Array],
      batch: layer_lib.Batch,
      *,
      train: bool,
  ) -> layer_lib.Loss:
    """Returns the loss of the microbatch."""
    h = inputs["h"] + inputs["skip"]
    normal = nn.initializers.normal(0.02)
    weight = self.param("weight", normal, (h.shape[-1], self.vocab_size))
    return losses.token_loss(h, weight, batch["targets"], vocab_first=False)
