"""What transformers share: the order of their layers, and products."""

import flax.linen as nn
import jax

from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models import linen

NORMAL = nn.initializers.normal(0.02)


def make_layers(
    *,
    embed: nn.Module,
    attention: nn.Module,
    mlp: nn.Module,
    head: nn.Module,
    num_blocks: int,
    tied: bool,
    embed_keys: tuple[str, ...] = ("inputs",),
    attention_keys: tuple[str, ...] = (),
    head_keys: tuple[str, ...] = ("targets",),
) -> tuple[linen.LinenLayer, ...]:
  """Returns the layers; the halves of a block are layers of their own.

  Args:
    tied: Whether the head shares the parameter `wte` of the embedding.
    embed_keys: What the layer reads of the microbatch; so are the next two.
  """
  layers = [linen.LinenLayer("embed", embed, embed_keys)]
  for block in range(num_blocks):
    name = f"block_{block:02d}"
    layers.append(
        linen.LinenLayer(f"{name}.attention", attention, attention_keys)
    )
    layers.append(linen.LinenLayer(f"{name}.mlp", mlp))
  ties = (layer_lib.Tie("wte", "embed", "wte"),) if tied else ()
  return (*layers, linen.LinenLayer("head", head, head_keys, ties))


def dense(
    features: int, name: str, dtype: jax.typing.DTypeLike, *, bias: bool = True
) -> nn.Dense:
  """Returns a product whose weights are float32."""
  return nn.Dense(
      features, use_bias=bias, dtype=dtype, kernel_init=NORMAL, name=name
  )
