"""Samples of a folder of images, `class/*.png|jpg`, the layout of ImageNet.

An image is decoded when it is requested. Training images are cropped and
mirrored at random, by a key of (seed, sample); held-out ones are cropped at the
centre. All arithmetic is on integers, so it is the same on all machines with
one version of Pillow.

Dimension key:

  S: samples
  H, W: height and width of an image, pixels
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import dataclasses
import functools
import hashlib
import math
import pathlib
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.base import extras
from bamboo_jax.data import draws, samples
from bamboo_jax.data.disk import files as files_lib

ON_CORRUPT = ("skip", "stop")
_SUFFIXES = (".jpeg", ".jpg", ".png")
_NUM_TRIES = 10  # Attempts to find a crop within the image.
_STREAM = 16  # Stream of random bits.

Box = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
  """Files and labels; those of class k are `starts[k]` to `starts[k + 1]`."""

  paths: tuple[pathlib.Path, ...]
  label_N: np.ndarray
  starts: tuple[int, ...]
  classes: tuple[str, ...]


def make_image_folder(
    *,
    path: str,
    image_size: int,
    num_classes: int | None = None,
    heldout_path: str | None = None,
    heldout_fraction: float = 0.02,
    on_corrupt: str = "skip",
) -> samples.Source:
  """Returns images of the subfolders of `path`, one for each class, sorted.

  The arrays are "images", uint8 [S, H, W, 3], decoded on request, and "labels".

  Args:
    image_size: Height and width of the samples, pixels.
    num_classes: Maximum number of subfolders; None: any number.
    heldout_path: A folder with the same classes; None holds out the last
      `heldout_fraction` of the images of each class.
    on_corrupt: How to treat an undecodable file. "skip" logs its name and takes
      the next image of its class; "stop" ends the run with its name. Errors of
      the file system always end the run.

  Raises:
    ValueError: An option is impossible.
    base.DataError: A folder cannot be read, or its classes do not fit.
  """
  pillow = extras.load("PIL.Image", extra="images", what="Folders of images")
  samples.check_ranges({"image_size": image_size})
  samples.check_fraction(heldout_fraction)
  if on_corrupt not in ON_CORRUPT:
    raise ValueError(base.suggest(on_corrupt, ON_CORRUPT, what="on_corrupt"))
  train, heldout = _split(path, heldout_path, heldout_fraction)
  if num_classes is not None and len(train.classes) > num_classes:
    raise base.DataError(
        f"{path} has {len(train.classes)} classes, but " f"num_classes={num_classes}."
    )
  size = len(train.paths)
  read = functools.partial(_read, pillow, image_size, on_corrupt)

  def batch(indices: Sequence[int], *, seed: int) -> dict[str, Any]:
    files = draws.shuffle(seed, indices, size=size)
    cut = functools.partial(_cut_at_random, seed)
    return _batch(read, train, files, indices, cut)

  def heldout_batch(indices: Sequence[int]) -> dict[str, Any]:
    cut = lambda image, _: (_middle(image.size), False)
    return _batch(read, heldout, indices, indices, cut)

  return samples.Source(
      fingerprint={
          "source": "image_folder",
          "files_sha256": _digest((*train.paths, *heldout.paths)),
          "image_size": image_size,
          "num_heldout": len(heldout.paths),
          "on_corrupt": on_corrupt,
      },
      vocab_size=len(train.classes),
      unit="samples",
      samples_per_epoch=size,
      num_heldout=len(heldout.paths),
      batch=batch,
      heldout_batch=heldout_batch,
  )


def _digest(paths: Sequence[pathlib.Path]) -> str:
  """Returns the digest of names and sizes of files."""
  digest = hashlib.sha256()
  for path in paths:
    line = f"{path.parent.name}/{path.name} {path.stat().st_size}\n"
    digest.update(line.encode(errors="surrogateescape"))
  return digest.hexdigest()


def _split(path: str, heldout_path: str | None, fraction: float) -> tuple[Images, Images]:
  """Returns the images to train on, and those held out."""
  train = _find_classes(path)
  if heldout_path is not None:
    found = _list_images(train), _list_images(_find_classes(heldout_path))
    if only := {*found[0].classes} ^ {*found[1].classes}:
      raise base.DataError(
          f"{heldout_path} must have the classes of {path}; in only one of "
          f"them: {sorted(only)}."
      )
    return found
  heldout = {}
  for name, paths in train.items():
    cut = len(paths) - int(len(paths) * fraction)
    train[name], heldout[name] = paths[:cut], paths[cut:]
  return _list_images(train), _list_images(heldout)


def _batch(
    read: Callable[..., np.ndarray],
    part: Images,
    files: Sequence[int],
    indices: Sequence[int],
    cut: Callable[[Any, int], tuple[Box, bool]],
) -> dict[str, Any]:
  make = lambda file, index: read(part, file, lambda i: cut(i, index))

  def images() -> np.ndarray:
    with futures.ThreadPoolExecutor() as pool:  # Pillow releases the GIL.
      return np.stack(list(pool.map(make, files, indices)))

  return {"images": images, "labels": part.label_N[list(files)]}


def _read(
    pillow: Any,
    size: int,
    on_corrupt: str,
    part: Images,
    file: int,
    cut: Callable[[Any], tuple[Box, bool]],
) -> np.ndarray:
  """Returns an image, or the next readable one of its class."""
  corrupt = (OSError, SyntaxError, ValueError, pillow.DecompressionBombError)
  first, last = part.starts[part.label_N[file] :][:2]
  for at in (*range(file, last), *range(first, file)):
    try:
      with pillow.open(part.paths[at]) as opened:
        image = opened.convert("RGB")
    except corrupt as error:
      # With errno it is an error of the file system, which may be temporary.
      is_corrupt = getattr(error, "errno", None) is None
      if on_corrupt == "stop" or not is_corrupt:
        remedy = " on_corrupt='skip' goes on without it." * is_corrupt
        raise base.DataError(f"Cannot read the image {part.paths[at]}: {error}.{remedy}") from error
      logging.warning("Skipped the image %s: %s", part.paths[at], error)
      continue
    box, is_mirrored = cut(image)
    pixels = np.asarray(image.resize((size, size), pillow.Resampling.BILINEAR, box))
    return pixels[:, ::-1] if is_mirrored else pixels
  raise base.DataError(f"None of the images in {part.paths[file].parent} can be read.")


def _find_classes(path: str) -> dict[str, list[pathlib.Path]]:
  """Returns the images of each class, sorted."""
  root = pathlib.Path(path).expanduser()
  classes: dict[str, list[pathlib.Path]] = {}
  left_out = []
  for entry in files_lib.list_folder(root):
    if entry.name.startswith(".") or not entry.is_dir():
      left_out.append(entry.name)
      continue
    names = [e.name for e in files_lib.list_folder(entry)]
    images = [name for name in names if _is_image(name)]
    left_out += [f"{entry.name}/{n}" for n in names if not _is_image(n)]
    if not images:
      raise base.DataError(
          f"The class folder {root / entry.name} has no image " f"{', '.join(_SUFFIXES)}."
      )
    classes[entry.name] = [root / entry.name / name for name in images]
  if not classes:
    raise base.DataError(f"There is no folder of a class in {root}.")
  files_lib.warn_of(path, left_out)
  return classes


def _is_image(name: str) -> bool:
  return name.lower().endswith(_SUFFIXES) and not name.startswith(".")


def _list_images(classes: Mapping[str, Sequence[pathlib.Path]]) -> Images:
  counts = [len(paths) for paths in classes.values()]
  return Images(
      paths=tuple(path for paths in classes.values() for path in paths),
      label_N=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
      starts=(0, *np.cumsum(counts).tolist()),
      classes=tuple(classes),
  )


def _middle(size: tuple[int, int]) -> Box:
  """Returns the square in the middle with 7/8 of the shorter side."""
  side = max(1, min(size) * 7 // 8)
  left, top = ((length - side) // 2 for length in size)
  return left, top, left + side, top + side


def _cut_at_random(seed: int, image: Any, index: int) -> tuple[Box, bool]:
  """Returns the random crop of a sample's image, and whether to mirror it.

  8 to 100 % of the area with sides of 3:4 to 4:3 (Szegedy et al., 2014).
  """
  count = 4 * _NUM_TRIES + 1
  bits = draws.raw_bits(seed, index, count=count, stream=_STREAM)
  draw = [int(b) for b in bits]
  is_mirrored = bool(draw[-1] & 1)
  width, height = image.size
  for a, b, c, d in zip(*(iter(draw[:-1]),) * 4, strict=True):
    area, ratio = width * height * (8 + a % 93) // 100, 36 + b % 29
    w = max(1, math.isqrt(area * ratio // 48))
    h = max(1, math.isqrt(area * 48 // ratio))
    if w <= width and h <= height:
      left, top = c % (width - w + 1), d % (height - h + 1)
      return (left, top, left + w, top + h), is_mirrored
  return _middle(image.size), is_mirrored
