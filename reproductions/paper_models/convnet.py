"""AlexNet and VGG-19: a chain of convolutions, then fully connected layers.

Krizhevsky, One weird trick for parallelizing convolutional neural networks,
2014; Simonyan and Zisserman, Very Deep Convolutional Networks, 2014 (model E).
Both as in torchvision, without normalisation. A convolution with its activation
and pooling is a layer, and so is each fully connected layer.

Dimension key: see `images`.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.linen as nn
import jax

from bamboo_jax.models import layer as layer_lib, linen, model as model_lib, shape as shape_lib
from bamboo_jax.reproductions.paper_models import images

_Convs = tuple[tuple[int, int, int, int, int], ...]


@dataclasses.dataclass(frozen=True)
class ConvNetSize:
  """The sizes of a network.

  Attributes:
    convs: For each convolution: channels, size of the kernel, stride, padding,
      and the size of the pooling with stride 2 after it, 0 for none.
    hidden: Width of the two hidden layers at the end.
    dropout_rate: Rate for the inputs of both hidden layers (AlexNet), or for
      their outputs (VGG).
  """

  convs: _Convs
  hidden: int
  image_size: int
  num_classes: int
  dropout_rate: float = 0.5

  def __post_init__(self) -> None:
    object.__setattr__(self, "convs", tuple(map(tuple, self.convs)))
    shape_lib.check(self)


def _vgg(depths: tuple[int, ...], widths: tuple[int, ...]) -> _Convs:
  return tuple(
      (width, 3, 1, 1, 2 if index == depth - 1 else 0)
      for depth, width in zip(depths, widths, strict=True)
      for index in range(depth)
  )


_ALEXNET = (
    (64, 11, 4, 2, 3),
    (192, 5, 1, 2, 3),
    (384, 3, 1, 1, 0),
    (256, 3, 1, 1, 0),
    (256, 3, 1, 1, 3),
)
_TINY_ALEXNET = ((8, 5, 2, 2, 3), (16, 3, 1, 1, 0), (16, 3, 1, 1, 3))

ALEXNET_VARIANTS: Mapping[str, ConvNetSize] = {
    "tiny": ConvNetSize(_TINY_ALEXNET, 32, 16, 10, dropout_rate=0.1),
    "full": ConvNetSize(_ALEXNET, 4096, 224, 1000),
}
VGG_VARIANTS: Mapping[str, ConvNetSize] = {
    "tiny": ConvNetSize(_vgg((1, 2), (8, 16)), 32, 16, 10),
    "19": ConvNetSize(_vgg((2, 2, 4, 4, 4), (64, 128, 256, 512, 512)), 4096, 224, 1000),
}


def make_alexnet(variant: str = "full", **options: Any) -> model_lib.Model:
  """Returns an AlexNet; `options` are fields of `ConvNetSize` to change."""
  return _make("alexnet", shape_lib.choose(ALEXNET_VARIANTS, variant, options, model="alexnet"))


def make_vgg(variant: str = "19", **options: Any) -> model_lib.Model:
  """Returns a VGG; `options` are fields of `ConvNetSize` to change."""
  return _make("vgg", shape_lib.choose(VGG_VARIANTS, variant, options, model="vgg"))


def _make(name: str, size: ConvNetSize) -> model_lib.Model:
  is_alexnet = name == "alexnet"
  rates: Any = {
      "before": size.dropout_rate if is_alexnet else 0.0,
      "after": 0.0 if is_alexnet else size.dropout_rate,
  }
  layers = [
      linen.make_layer(
          *(f"conv_{index:02d}", _conv, () if index else ("images",)),
          row=row,
          image_size=0 if index else size.image_size,
      )
      for index, row in enumerate(size.convs)
  ]
  layers += [linen.make_layer(f"hidden_{i}", _hidden, width=size.hidden, **rates) for i in range(2)]
  return images.make_model(name, layers, size)


def _conv(
    call: linen.Call,
    inputs: jax.Array | None,
    batch: layer_lib.Batch,
    *,
    row: tuple[int, int, int, int, int],
    image_size: int,
) -> jax.Array:
  """A convolution, ReLU and optional pooling: a row of `ConvNetSize.convs`.

  `image_size` is 0 except for the first.
  """
  features, length, stride, padding, pool = row
  if image_size:
    inputs = images.normalize(batch, image_size, "float32")
  conv = images.conv(*(features, length), stride=stride, bias=True, padding=padding, name="conv")
  h = nn.relu(conv(inputs))
  return images.max_pool(h, (pool, pool)) if pool else h


def _hidden(
    call: linen.Call,
    inputs: jax.Array,
    batch: layer_lib.Batch,
    *,
    width: int,
    before: float,
    after: float,
) -> jax.Array:
  """A product with ReLU; dropout before or after it; [S, C]."""
  h = call.drop(inputs.reshape(inputs.shape[0], -1), before)
  h = nn.relu(nn.Dense(width, name="dense")(h))
  return call.drop(h, after)
