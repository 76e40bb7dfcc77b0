"""Units: neighbouring layers that are compiled together and never split.

A program belongs to a kind of unit, so the bits of a run depend on how a model
is split into units, but not on how units are assigned to stages.
"""

from collections.abc import Sequence
import itertools


def find_cuts(layer_names: Sequence[str]) -> tuple[int, ...]:
  """Returns the layers at which a stage other than the first may start.

  A block consists of neighbours called "block.part", such as
  "block_00.attention" and "block_00.mlp"; any other layer is a unit of its own.
  """
  pairs = enumerate(itertools.pairwise(layer_names), start=1)
  return tuple(layer for layer, (before, name) in pairs if _block_of(name) != _block_of(before))


def split(layer_names: Sequence[str], first: int, last: int) -> tuple[range, ...]:
  """Returns the units of the stage of layers `first` to `last - 1`.

  Raises:
    ValueError: The stage begins or ends inside a unit.
  """
  cuts = find_cuts(layer_names)
  for layer in (first, last):
    if 0 < layer < len(layer_names) and layer not in cuts:
      raise ValueError(
          f"A stage cannot start at layer {layer_names[layer]!r}, which is computed together with "
          f"{layer_names[layer - 1]!r}; cut elsewhere."
      )
  bounds = itertools.pairwise((first, *[c for c in cuts if first < c < last], last))
  return tuple(range(*pair) for pair in bounds)


def _block_of(name: str) -> str:
  return name.rpartition(".")[0] or name
