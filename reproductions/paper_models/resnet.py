"""ResNet-50 and ResNet-152: residual networks of bottleneck blocks.

He et al., Deep Residual Learning for Image Recognition, 2015, with the stride
in the 3x3 convolution, as PyTorch and `transformers` have it. Each residual
block is one layer. Normalisation is by the statistics of the microbatch, and
running ones in evaluation ("batch"), or within each example ("group").

Dimension key: see `images`.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax

from bamboo_jax import base
from bamboo_jax.models import layer as layer_lib, linen, model as model_lib, shape as shape_lib
from bamboo_jax.reproductions.paper_models import images

_EXPANSION = 4  # Output width of a block over its inner width.
_NORMS = ("batch", "group")
_STEMS = (1, 4)


@dataclasses.dataclass(frozen=True)
class ResNetSize:
  """The options of a network.

  Attributes:
    depths: Number of blocks of each resolution.
    width: Inner channels of the blocks of the first resolution.
    stem: Stride of the layers before the blocks: 4 or, for small images, 1.
    image_size: Height and width of the images, pixels.
    norm: "batch" or "group".
    dtype: "float32" or "bfloat16", of activations and products.
  """

  depths: tuple[int, ...]
  width: int
  stem: int
  image_size: int
  num_classes: int
  norm: str = "batch"
  dtype: str = "float32"

  def __post_init__(self) -> None:
    object.__setattr__(self, "depths", tuple(self.depths))
    shape_lib.check(self)
    if self.norm not in _NORMS:
      raise ValueError(base.suggest(self.norm, _NORMS, what="norm"))
    if self.stem not in _STEMS:
      raise ValueError(f"stem must be one of {_STEMS}, got {self.stem}.")


VARIANTS: Mapping[str, ResNetSize] = {
    "tiny": ResNetSize((1, 1, 1), 8, 1, 16, 10),
    "50": ResNetSize((3, 4, 6, 3), 64, 4, 224, 1000),
    "152": ResNetSize((3, 8, 36, 3), 64, 4, 224, 1000),
}


def make_resnet(variant: str = "50", **options: Any) -> model_lib.Model:
  """Returns a ResNet; `options` are fields of `ResNetSize` to change."""
  size = shape_lib.choose(VARIANTS, variant, options, model="resnet")
  layers = [linen.make_layer("stem", _stem, ("images",), size=size)]
  for level, depth in enumerate(size.depths):
    for index in range(depth):
      block = linen.make_layer(
          *(f"stage_{level}_block_{index:02d}", _block),
          width=size.width * 2**level,
          stride=2 if level and not index else 1,
          kind=size.norm,
      )
      layers.append(block)
  return images.make_model("resnet", layers, size)


def _stem(call: linen.Call, inputs: None, batch: layer_lib.Batch, *, size: ResNetSize) -> jax.Array:
  """Turns pixels into activations [S, H, W, C]: convolution, norm, pooling."""
  h = images.normalize(batch, size.image_size, size.dtype)
  is_small = size.stem == 1
  length, stride = (3, 1) if is_small else (7, 2)
  h = images.conv(size.width, length, stride=stride, name="conv")(h)
  h = nn.relu(_norm(size.norm, "norm", h, train=call.train))
  if is_small:
    return h
  return images.max_pool(h, (3, 3), padding=((1, 1), (1, 1)))


def _block(
    call: linen.Call,
    inputs: jax.Array,
    batch: layer_lib.Batch,
    *,
    width: int,
    stride: int,
    kind: str,
) -> jax.Array:
  """Three convolutions with norms of a kind, beside a shortcut."""
  norm = lambda name, h: _norm(kind, name, h, train=call.train)
  out = _EXPANSION * width
  h = images.conv(width, 1, name="conv_0")(inputs)
  h = nn.relu(norm("norm_0", h))
  h = images.conv(width, 3, stride=stride, name="conv_1")(h)
  h = nn.relu(norm("norm_1", h))
  h = norm("norm_2", images.conv(out, 1, name="conv_2")(h))
  if inputs.shape != h.shape:
    shortcut = images.conv(out, 1, stride=stride, name="shortcut")
    inputs = norm("shortcut_norm", shortcut(inputs))
  return nn.relu(inputs + h)


def _norm(kind: str, name: str, h: jax.Array, *, train: bool) -> jax.Array:
  """Returns `h` normalised; has a scale and a shift for each channel."""
  if kind == "group":
    groups = math.gcd(32, h.shape[-1])
    return nn.GroupNorm(groups, epsilon=1e-5, name=name)(h).astype(h.dtype)
  return nn.BatchNorm(
      use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=h.dtype, name=name
  )(h)
