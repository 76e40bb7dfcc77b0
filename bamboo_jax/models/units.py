"""Units: neighbouring layers that are compiled together and never split.

A program belongs to a kind of unit, so the bits of a run depend on how a model
is split into units, but not on how units are assigned to stages.
"""

from collections.abc import Sequence
import itertools

from bamboo_jax import base

# A block consists of neighbours called "block.part", such as
# "block_00.attention" and "block_00.mlp"; any other layer is a unit of its own.
# With "stage" each stage is one unit.
UNITS = ("block", "layer", "stage")


def find_cuts(layer_names: Sequence[str], unit: str) -> tuple[int, ...]:
  """Returns the layers at which a stage other than the first may start.

  Raises:
    ValueError: `unit` is not one of `UNITS`.
  """
  if unit not in UNITS:
    raise ValueError(base.suggest(unit, UNITS, what="pipeline.unit"))
  pairs = enumerate(itertools.pairwise(layer_names), start=1)
  return tuple(
      layer
      for layer, (before, name) in pairs
      if unit != "block" or _block_of(name) != _block_of(before)
  )


def split(layer_names: Sequence[str], first: int, last: int, unit: str) -> tuple[range, ...]:
  """Returns the units of the stage of layers `first` to `last - 1`.

  Raises:
    ValueError: The stage begins or ends inside a unit.
  """
  cuts = find_cuts(layer_names, unit)
  for layer in (first, last):
    if 0 < layer < len(layer_names) and layer not in cuts:
      raise ValueError(
          f"A stage cannot start at layer {layer_names[layer]!r}, which "
          f"pipeline.unit={unit!r} computes together with "
          f"{layer_names[layer - 1]!r}; cut elsewhere, or take a unit of "
          "'layer' or 'stage'."
      )
  inner = [] if unit == "stage" else [c for c in cuts if first < c < last]
  bounds = itertools.pairwise((first, *inner, last))
  return tuple(range(*pair) for pair in bounds)


def _block_of(name: str) -> str:
  return name.rpartition(".")[0] or name
