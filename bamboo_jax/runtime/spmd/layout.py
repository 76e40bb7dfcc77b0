"""Splits a model into equal blocks, as many to each stage.

One program for all stages needs stages of one shape. So a model is a prologue,
a block of layers that repeats, and an epilogue, as GPT-2 is an embedding, pairs
of attention and MLP, and a head. Prologue and epilogue belong to the first and
the last stage.
"""

from collections.abc import Hashable, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.runtime.stage import spec as spec_lib

ADVICE = "use config.pipeline.executor='rows', whose stages may differ"


@dataclasses.dataclass(frozen=True)
class Blocks:
  """The repeating block of a model.

  Attributes:
    first: Index of its first layer, so the number of layers of the prologue.
    period: Number of layers of one block.
    count: How often it repeats, at least twice.
  """

  first: int
  period: int
  count: int

  @property
  def last(self) -> int:
    """Index of the first layer of the epilogue."""
    return self.first + self.period * self.count

  def cuts(self, num_stages: int) -> tuple[int, ...]:
    """Returns the first layers of stages with as many blocks, without layer 0.

    Raises `ValueError` if there are none.
    """
    if self.count % num_stages:
      raise ValueError(
          f"config.pipeline.num_stages={num_stages} does not divide the {self.count} equal "
          f"blocks of the model, of which one program for all stages needs as many in each; "
          f"{ADVICE}."
      )
    size = self.period * self.count // num_stages
    return tuple(range(self.first + size, self.last, size))


@dataclasses.dataclass(frozen=True)
class BlockLayout:
  """The layers of each stage."""

  blocks: Blocks
  num_layers: int
  num_stages: int

  @property
  def count(self) -> int:
    """Number of blocks of a stage."""
    return self.blocks.count // self.num_stages

  @property
  def prologue(self) -> range:
    """Layers that only the first stage runs."""
    return range(self.blocks.first)

  @property
  def epilogue(self) -> range:
    """Layers that only the last stage runs."""
    return range(self.blocks.last, self.num_layers)

  @property
  def block(self) -> range:
    """Layers of the first block."""
    return range(self.blocks.first, self.blocks.first + self.blocks.period)

  def first_layer(self, stage: int) -> int:
    """Returns the index of the first layer of a stage's blocks; `stage` may be traced."""
    return self.blocks.first + stage * self.count * self.blocks.period

  def layers(self, stage: base.StageId) -> range:
    """Returns the indices of all layers of a stage."""
    is_last = stage == self.num_stages - 1
    last = self.num_layers if is_last else self.first_layer(stage + 1)
    return range(self.first_layer(stage) if stage else 0, last)

  def blocks_of(self, stage: base.StageId) -> list[range]:
    """Returns the layers of each block of a stage."""
    first, period = self.first_layer(stage), self.blocks.period
    starts = range(first, first + self.count * period, period)
    return [range(start, start + period) for start in starts]


def unit_of(spec: spec_lib.StageSpec, layers: range) -> spec_lib.StageSpec:
  """Returns some layers of a model as one unit."""
  return dataclasses.replace(spec, first=layers.start, last=layers.stop, is_unit=True)


def units_of(spec: spec_lib.StageSpec, layers: range) -> tuple[spec_lib.StageSpec, ...]:
  """Returns the units of rows that are these layers of a model."""
  return dataclasses.replace(spec, first=layers.start, last=layers.stop).units


def find_blocks(signatures: Sequence[Hashable]) -> Blocks | None:
  """Returns the repetition that covers most layers; None if there is none.

  Layers with equal `signatures` are equal.
  """
  found, most = None, 0
  for period in range(1, len(signatures) // 2 + 1):
    for first in range(len(signatures) - 2 * period + 1):
      block = tuple(signatures[first : first + period])
      count = 1
      while tuple(signatures[first + count * period :][:period]) == block:
        count += 1
      if count > 1 and count * period > most:
        found, most = Blocks(first, period, count), count * period
  return found


def blocks_of(spec: spec_lib.StageSpec) -> Blocks:
  """Returns the repeating block of a model.

  Raises `ValueError` if nothing repeats, a block shares parameters with
  another layer, or parameters are frozen.
  """
  if any(layer.trained for layer in spec.model.layers):
    raise ValueError(
        f"Model {spec.model.name!r} has frozen parameters, which one program "
        f"for all stages cannot have; {ADVICE}."
    )
  shapes = [str(shapes) for shapes in spec.model.input_shapes(spec.batch)]
  kinds = [layer.kind for layer in spec.model.layers]
  signatures = [*zip(kinds, shapes, [*shapes[1:], None], strict=True)]
  names = spec.model.layer_names
  blocks = find_blocks(signatures)
  if blocks is None:
    others = (i for i, s in enumerate(signatures) if s != signatures[0])
    different = next(others, 0)
    raise ValueError(
        "One program for all stages needs a block of layers that repeats, but "
        f"the model {spec.model.name!r} has none: layer {names[different]!r} "
        f"differs from {names[0]!r}; {ADVICE}."
    )
  tied = {tie.layer for layer in spec.model.layers for tie in layer.ties}
  for layer in spec.model.layers[blocks.first : blocks.last]:
    if layer.ties or layer.name in tied:
      raise ValueError(
          f"Layer {layer.name!r} of a repeating block shares a parameter with "
          "another layer; in one program for all stages only the layers before "
          f"and after the blocks may; {ADVICE}."
      )
  return blocks


def make_layout(spec: spec_lib.StageSpec, bounds: Sequence[int]) -> BlockLayout:
  """Returns the layout of stages of whole blocks.

  `bounds` are their first layers, then the number of layers: of `spec`, or of a
  model with more of its blocks, which is only planned. Raises as `Blocks.cuts`.
  """
  blocks, num_stages = blocks_of(spec), len(bounds) - 1
  more = (bounds[-1] - len(spec.model.layers)) // blocks.period
  blocks = dataclasses.replace(blocks, count=blocks.count + more)
  assert tuple(bounds[1:-1]) == blocks.cuts(num_stages), bounds
  return BlockLayout(blocks, num_layers=bounds[-1], num_stages=num_stages)
