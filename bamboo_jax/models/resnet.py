"""ResNet-50 and ResNet-152: residual networks of bottleneck blocks.

He et al., Deep Residual Learning for Image Recognition, 2015, with the stride
in the 3x3 convolution, as PyTorch and `transformers` have it. Each residual
block is one layer. Normalisation is by the statistics of the microbatch, and
running ones in evaluation ("batch"), or within each example ("group").

Dimension key: see `images`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import types

import flax.linen as nn
import jax

from bamboo_jax import base
from bamboo_jax.models import images
from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models import linen
from bamboo_jax.models import model as model_lib

_EXPANSION = 4  # Of the width of a block, to that of its output.
_NORMS = ("batch", "group")
_STEMS = (1, 4)
_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Size:
  """How large a network is; `depths` has the blocks of each resolution.

  `stem` is the stride of the first two steps together: 4 or, for images that
  are small already, 1.
  """

  depths: tuple[int, ...]
  width: int
  stem: int
  image_size: int
  num_classes: int


VARIANTS: Mapping[str, Size] = types.MappingProxyType(
    {
        "tiny": Size((1, 1, 1), 8, 1, 16, 10),
        "50": Size((3, 4, 6, 3), 64, 4, 224, 1000),
        "152": Size((3, 8, 36, 3), 64, 4, 224, 1000),
    }
)


def make_resnet(
    *,
    variant: str = "50",
    depths: Sequence[int] | None = None,
    width: int | None = None,
    stem: int | None = None,
    image_size: int | None = None,
    num_classes: int | None = None,
    norm: str = "batch",
    dtype: str = "float32",
) -> model_lib.Model:
  """Returns a ResNet; a microbatch is "images" and "labels", see `images`.

  Args:
    variant: A key of `VARIANTS`; sets what the next five leave at None, which
      are the fields of `Size`.
    norm: "batch" or "group".
    dtype: "float32" or "bfloat16", of activations and products.
  """
  for name, value, allowed in (
      ("variant of resnet", variant, VARIANTS),
      ("norm", norm, _NORMS),
      ("dtype", dtype, _DTYPES),
  ):
    if value not in allowed:
      raise ValueError(base.suggest(value, allowed, what=name))
  given = {
      "depths": depths and tuple(depths),
      "width": width,
      "stem": stem,
      "image_size": image_size,
      "num_classes": num_classes,
  }
  given = {k: v for k, v in given.items() if v is not None}
  size = dataclasses.replace(VARIANTS[variant], **given)
  images.check(dataclasses.asdict(size))
  if size.stem not in _STEMS:
    raise ValueError(f"stem must be one of {_STEMS}, got {size.stem}.")
  first = Stem(size.width, size.stem, size.image_size, norm, dtype)
  layers = [linen.LinenLayer("stem", first, ("images",))]
  for level, depth in enumerate(size.depths):
    for index in range(depth):
      block = Block(
          width=size.width * 2**level,
          stride=2 if level and not index else 1,
          norm=norm,
      )
      name = f"stage_{level}_block_{index:02d}"
      layers.append(linen.LinenLayer(name, block))
  head = images.Head(size.num_classes)
  layers.append(linen.LinenLayer("head", head, ("labels",)))
  fingerprint = {
      "name": "resnet",
      **dataclasses.asdict(size),
      "depths": list(size.depths),
      "norm": norm,
      "dtype": dtype,
  }
  return model_lib.Model(
      "resnet", tuple(layers), fingerprint, images.sample(size.image_size)
  )


class Stem(nn.Module):
  """Turns pixels into activations: convolution, norm, ReLU, pooling."""

  width: int
  stride: int
  image_size: int
  norm: str
  dtype: str

  @nn.compact
  def __call__(
      self, inputs: None, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, H, W, C]."""
    h = images.normalize(batch, self.image_size, self.dtype)
    size, stride = (3, 1) if self.stride == 1 else (7, 2)
    h = images.conv(self.width, size, stride=stride, name="conv")(h)
    h = nn.relu(_norm(self.norm, "norm", h, train=train))
    if self.stride == 1:
      return h
    return images.max_pool(h, (3, 3), padding=((1, 1), (1, 1)))


class Block(nn.Module):
  """Three convolutions with norms, beside a shortcut."""

  width: int
  stride: int
  norm: str

  @nn.compact
  def __call__(
      self, inputs: jax.Array, batch: layer_lib.Batch, *, train: bool
  ) -> jax.Array:
    """Returns activations [S, H, W, C]."""
    norm = lambda name, h: _norm(self.norm, name, h, train=train)
    out = _EXPANSION * self.width
    h = images.conv(self.width, 1, name="conv_0")(inputs)
    h = nn.relu(norm("norm_0", h))
    h = images.conv(self.width, 3, stride=self.stride, name="conv_1")(h)
    h = nn.relu(norm("norm_1", h))
    h = norm("norm_2", images.conv(out, 1, name="conv_2")(h))
    if inputs.shape != h.shape:
      shortcut = images.conv(out, 1, stride=self.stride, name="shortcut")
      inputs = norm("shortcut_norm", shortcut(inputs))
    return nn.relu(inputs + h)


def _norm(kind: str, name: str, h: jax.Array, *, train: bool) -> jax.Array:
  """Returns `h` normalised; has a scale and a shift for each channel."""
  if kind == "group":
    groups = math.gcd(32, h.shape[-1])
    return nn.GroupNorm(groups, epsilon=1e-5, name=name)(h).astype(h.dtype)
  return nn.BatchNorm(
      use_running_average=not train,
      momentum=0.9,
      epsilon=1e-5,
      dtype=h.dtype,
      name=name,
  )(h)
