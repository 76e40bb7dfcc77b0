"""The first and the last layer of networks for images; convolutions.

Images are uint8 [S, H, W, 3], labels integers [S]; negative labels are ignored.
Kernels are [height, width, in, out]; padding is as in PyTorch, so that weights
can be exchanged. Parameters, statistics and the loss are float32.

Dimension key:

  S: examples per microbatch
  H, W: height and width of the image, pixels
  C: channels
  K: classes
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from bamboo_jax.models import layer as layer_lib, linen, model as model_lib

# Mean and deviation of ImageNet, by channel; pixels from 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def make_model(name: str, layers: Sequence[linen.LinenLayer], size: Any) -> model_lib.Model:
  """Returns a model of these layers and a head; `size` has its options."""
  head = linen.make_layer("head", _head, ("labels",), num_classes=size.num_classes)
  options = {k: _plain(v) for k, v in dataclasses.asdict(size).items()}
  shape = (size.image_size, size.image_size, 3)
  sample = {
      "images": jax.ShapeDtypeStruct(shape, jnp.uint8),
      "labels": jax.ShapeDtypeStruct((), jnp.int32),
  }
  fingerprint = {"name": name, **options}
  return model_lib.Model(name, (*layers, head), fingerprint, sample)


def _plain(value: Any) -> Any:
  """Returns a value with lists instead of tuples, as JSON has it."""
  return [*map(_plain, value)] if isinstance(value, tuple) else value


def normalize(batch: layer_lib.Batch, image_size: int, dtype: str) -> jax.Array:
  """Returns the images of the batch with mean 0 and deviation 1, [S, H, W, C].

  Raises:
    ValueError: The images do not have `image_size`.
  """
  images = batch["images"]
  if images.ndim != 4 or images.shape[1:] != (image_size, image_size, 3):
    raise ValueError(
        f"The model has image_size={image_size}, but 'images' of the batch has "
        f"shape {images.shape}."
    )
  x_SHWC = images.astype(jnp.float32) / 255
  return ((x_SHWC - jnp.array(MEAN)) / jnp.array(STD)).astype(dtype)


def conv(
    features: int, size: int, *, stride: int = 1, bias: bool = False, **kwargs: Any
) -> nn.Conv:
  """Returns a convolution with a square kernel of odd `size`."""
  kwargs.setdefault("padding", (size - 1) // 2)
  return nn.Conv(
      features,
      (size, size),
      strides=stride,
      use_bias=bias,
      kernel_init=nn.initializers.kaiming_normal(),
      **kwargs,
  )


max_pool = functools.partial(nn.max_pool, strides=(2, 2))


def _head(
    call: linen.Call, inputs: jax.Array, batch: layer_lib.Batch, *, num_classes: int
) -> layer_lib.Loss:
  """Averages over an image of activations, if any; projects to the classes."""
  if inputs.ndim == 4:
    inputs = inputs.mean((1, 2))
  dense = nn.Dense(num_classes, name="dense")
  label_S, logits_SK = batch["labels"], dense(inputs.astype(jnp.float32))
  losses_S = optax.softmax_cross_entropy_with_integer_labels(logits_SK, jnp.maximum(label_S, 0))
  loss = layer_lib.sum_losses(losses_S, label_S >= 0)
  if call.train:
    return loss
  correct = (logits_SK.argmax(-1) == label_S).sum(dtype=jnp.float32)
  return loss.replace(metrics={"accuracy": correct})
