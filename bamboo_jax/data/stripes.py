"""Generated images with a rule that a network can learn: the way stripes go.

The class decides direction and width of the stripes; where they begin, which of
two grey levels is brighter and the noise are random. All arithmetic is with
integers, so the samples are the same on all machines.

Dimension key:
  S: samples
  H, W: height and width of an image, pixels
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import ClassVar

import numpy as np

from bamboo_jax.data import draws

_TRAIN, _HELDOUT = 17, 18  # Streams of random bits.
_MAX_DIRECTIONS = 16
_FINE = 64  # Parts of a pixel in which positions are counted.
_LEAST_PERIOD = 6  # Pixels.


@dataclasses.dataclass(frozen=True)
class Stripes:
  """A `source.Source` of images with stripes.

  `noise` is the most by which a pixel is off, of 255; 64 grey levels lie
  between the stripes.
  """

  image_size: int
  num_classes: int = 10
  noise: int = 64
  num_heldout: int = 1024

  samples_per_epoch: ClassVar[None] = None  # No image comes twice.
  best_loss: ClassVar[None] = None
  manifest: ClassVar[None] = None

  def __post_init__(self) -> None:
    for name, least, most in (
        ("image_size", 1, math.inf),
        ("num_classes", 1, math.inf),
        ("noise", 0, 95),
        ("num_heldout", 0, math.inf),
    ):
      value = getattr(self, name)
      if not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, got {value}.")

  @property
  def vocab_size(self) -> int:
    """Number of classes; all labels are below it."""
    return self.num_classes

  @property
  def fingerprint(self) -> Mapping[str, str | int | float]:
    """All that the samples depend on, beside the seed."""
    return {"source": "stripes", **dataclasses.asdict(self)}

  def batch(
      self, indices: Sequence[int], *, seed: int
  ) -> dict[str, np.ndarray]:
    """Returns "images", uint8 [S, H, W, 3], and "labels", int32 [S]."""
    return self._draw(seed, indices, _TRAIN)

  def heldout_batch(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns images that no run trains on."""
    return self._draw(0, indices, _HELDOUT)

  def _draw(
      self, seed: int, indices: Sequence[int], stream: int
  ) -> dict[str, np.ndarray]:
    size = self.image_size
    count = 2 + -(-3 * size * size // 8)
    bits_SB = np.array(
        [draws.raw_bits(seed, i, count=count, stream=stream) for i in indices]
    ).reshape(-1, count)
    labels = [int(bits) % self.num_classes for bits in bits_SB[:, 0]]
    noise_SHWC = bits_SB[:, 2:].copy().view(np.uint8)[:, : 3 * size * size]
    noise_SHWC = noise_SHWC.reshape(-1, size, size, 3).astype(np.int32)
    noise_SHWC = (noise_SHWC * (2 * self.noise + 1) >> 8) - self.noise
    stripes = [
        self._stripes(*pair) for pair in zip(labels, bits_SB[:, 1], strict=True)
    ]
    stripes_SHW = np.array(stripes, np.int32).reshape(-1, size, size)
    images_SHWC = 96 + 64 * stripes_SHW[..., None] + noise_SHWC
    return {
        "images": images_SHWC.astype(np.uint8),
        "labels": np.array(labels, np.int32),
    }

  def _stripes(self, label: int, bits: np.uint64) -> np.ndarray:
    """Returns 0 or 1 for each pixel, [H, W]."""
    turns = min(self.num_classes, _MAX_DIRECTIONS)
    angle = math.pi * (label % turns) / turns
    across = round(_FINE * math.cos(angle)), round(_FINE * math.sin(angle))
    half = _FINE * (_LEAST_PERIOD + label // turns) // 2
    y_HW, x_HW = np.mgrid[: self.image_size, : self.image_size]
    place_HW = across[0] * x_HW + across[1] * y_HW + int(bits >> 1) % (2 * half)
    return (place_HW // half + int(bits & 1)) % 2
