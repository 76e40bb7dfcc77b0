"""Generated images with a learnable rule: the direction of their stripes.

The class determines direction and width of the stripes; their offset, which of
two grey levels is brighter, and the noise are random. All arithmetic is on
integers, so the samples are the same on all machines.

Dimension key:

  S: samples
  H, W: height and width of an image, pixels
"""

from collections.abc import Sequence
import functools
import math

import numpy as np

from bamboo_jax.data import draws, samples

_TRAIN, _HELDOUT = 17, 18  # Streams of random bits.
_MAX_DIRECTIONS = 16
_FINE = 64  # Subpixel units of positions.
_LEAST_PERIOD = 6  # Pixels.


def make_stripes(
    *, image_size: int, num_classes: int = 10, noise: int = 64, num_heldout: int = 1024
) -> samples.Source:
  """Returns a source of "images", uint8 [S, H, W, 3], and "labels", int32 [S].

  `noise` is the maximum error of a pixel, of 255; the stripes differ by 64 grey
  levels. No image repeats.
  """
  options = {
      "image_size": image_size,
      "num_classes": num_classes,
      "noise": noise,
      "num_heldout": num_heldout,
  }
  least = {"noise": 0, "num_heldout": 0}
  samples.check_ranges(options, least=least, most={"noise": 95})
  draw = functools.partial(_draw, image_size, num_classes, noise)
  return samples.Source(
      fingerprint={"source": "stripes", **options},
      vocab_size=num_classes,
      unit="samples",
      num_heldout=num_heldout,
      batch=functools.partial(draw, _TRAIN),
      heldout_batch=functools.partial(draw, _HELDOUT, seed=0),
  )


def _draw(
    size: int, num_classes: int, noise: int, stream: int, indices: Sequence[int], *, seed: int
) -> dict[str, np.ndarray]:
  count = 2 + -(-3 * size * size // 8)
  bits_SB = draws.bits_of_samples(seed, indices, count=count, stream=stream)
  labels = [int(bits) % num_classes for bits in bits_SB[:, 0]]
  noise_SHWC = bits_SB[:, 2:].copy().view(np.uint8)[:, : 3 * size * size]
  noise_SHWC = noise_SHWC.reshape(-1, size, size, 3).astype(np.int32)
  noise_SHWC = (noise_SHWC * (2 * noise + 1) >> 8) - noise
  stripes = [_stripes(size, num_classes, *pair) for pair in zip(labels, bits_SB[:, 1], strict=True)]
  stripes_SHW = np.array(stripes, np.int32).reshape(-1, size, size)
  images_SHWC = 96 + 64 * stripes_SHW[..., None] + noise_SHWC
  return {"images": images_SHWC.astype(np.uint8), "labels": np.array(labels, np.int32)}


def _stripes(size: int, num_classes: int, label: int, bits: np.uint64) -> np.ndarray:
  """Returns 0 or 1 for each pixel, [H, W]."""
  turns = min(num_classes, _MAX_DIRECTIONS)
  angle = math.pi * (label % turns) / turns
  across = round(_FINE * math.cos(angle)), round(_FINE * math.sin(angle))
  half = _FINE * (_LEAST_PERIOD + label // turns) // 2
  y_HW, x_HW = np.mgrid[:size, :size]
  place_HW = across[0] * x_HW + across[1] * y_HW + int(bits >> 1) % (2 * half)
  stripes_HW: np.ndarray = (place_HW // half + int(bits & 1)) % 2
  return stripes_HW
