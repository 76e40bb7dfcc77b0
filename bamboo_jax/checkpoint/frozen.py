"""Frozen arrays: those of a checkpoint that are read from other weights.

With LoRA almost all arrays are those of the weights from which the run began,
and never change. A checkpoint has only their hash, and a reader takes them from
these weights, unless they have changed since.
"""

from collections.abc import Callable, Collection, Mapping
import pathlib
from typing import NamedTuple

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays, manifest as manifest_lib
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.models import layer as layer_lib, linen


class InitialWeights(NamedTuple):
  """The weights from which a run began.

  Attributes:
    path: Their folder, for messages.
    read: Returns the variables of a layer; raises `base.CheckpointError`.
  """

  path: str
  read: Callable[[str], layer_lib.Variables]


def find(
    layer: linen.LinenLayer, arrays: Mapping[str, np.ndarray], weights: InitialWeights | None
) -> manifest_lib.Frozen | None:
  """Returns those of all `arrays` of a layer that need not be stored.

  None if there are none, or if `weights` do not have them, or no longer.
  """
  prefix = f"params/{layer.trained}"
  params = {n: a for n, a in arrays.items() if n.startswith("params/")}
  frozen = {n: a for n, a in params.items() if not n.startswith(prefix)}
  if not frozen or weights is None:
    return None
  here = _describe(frozen)
  try:
    if _describe(_take(layer.name, frozen, weights)) == here:
      return here
    problem = f"Layer {layer.name!r} in {weights.path} has changed."
  except base.CheckpointError as error:
    problem = str(error)
  logging.log_first_n(logging.WARNING, "%s Checkpoints store frozen weights too.", 1, problem)
  return None


def read(
    checkpoint: pathlib.Path,
    layer: str,
    frozen: manifest_lib.Frozen,
    weights: InitialWeights | None,
) -> dict[str, np.ndarray]:
  """Returns the frozen arrays of a layer.

  Raises `base.CheckpointError` if `weights` cannot be read, or have others.
  """
  needs = f"Checkpoint {checkpoint} needs the weights from which its run began"
  if weights is None:
    raise base.CheckpointError(f"{needs}: set config.init_from.")
  try:
    arrays = _take(layer, frozen.arrays, weights)
  except base.CheckpointError as error:  # Maybe damaged: this one is not.
    raise base.CheckpointError(f"{needs}. {error}") from error
  if _describe(arrays) != frozen:
    raise base.CheckpointError(
        f"{needs}, but {weights.path} has changed since: layer {layer!r} has "
        "other frozen weights."
    )
  return arrays


def _take(layer: str, names: Collection[str], weights: InitialWeights) -> dict[str, np.ndarray]:
  found = layer_arrays.name_leaves(weights.read(layer))
  return {name: np.asarray(found[name]) for name in names}


def _describe(arrays: Mapping[str, np.ndarray]) -> manifest_lib.Frozen:
  return manifest_lib.Frozen(
      summary_lib.digest_arrays(sorted(arrays.items())), layer_arrays.specs_of(arrays)
  )
