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
class BlockLayout:
  """The repeating block of a model, and the layers of each stage.

  Attributes:
    first: Index of the first layer of the blocks, so the number of layers before them.
    period: Number of layers of one block.
    num_blocks: How often the block comes.
    num_layers: Number of layers of the model.
  """

  first: int
  period: int
  num_blocks: int
  num_layers: int
  num_stages: int = 1

  def __post_init__(self) -> None:
    if self.num_blocks % self.num_stages:
      raise ValueError(
          f"config.pipeline.num_stages={self.num_stages} does not divide the {self.num_blocks} "
          "equal blocks of the model, of which one program for all stages needs as many in each; "
          f"{ADVICE}."
      )

  @property
  def count(self) -> int:
    """Number of blocks of a stage."""
    return self.num_blocks // self.num_stages

  @property
  def cuts(self) -> tuple[int, ...]:
    """The first layers of the stages, without layer 0."""
    return tuple(map(self.first_layer, range(1, self.num_stages)))

  @property
  def prologue(self) -> range:
    """Layers that only the first stage runs."""
    return range(self.first)

  @property
  def block(self) -> range:
    """Layers of the first block."""
    return range(self.first, self.first + self.period)

  @property
  def epilogue(self) -> range:
    """Layers that only the last stage runs."""
    return range(self.first_layer(self.num_stages), self.num_layers)

  def first_layer(self, stage: int) -> int:
    """Returns the index of the first layer of a stage's blocks; `stage` may be traced."""
    return self.first + stage * self.count * self.period

  def parts_of(self, stage: base.StageId, hold: int) -> list[tuple[str, tuple[int, ...], range]]:
    """Returns all layers of a stage, and where they are in the arrays of `passes.Parts`.

    That is a field and the index there, after that of the node; `hold` is the place of the
    stage among those of the node.
    """
    starts = range(self.first_layer(stage), self.first_layer(stage + 1), self.period)
    parts: list[tuple[str, tuple[int, ...], range]] = [
        ("blocks", (hold, i), range(start, start + self.period)) for i, start in enumerate(starts)
    ]
    if stage == 0:
      parts.insert(0, ("prologue", (), self.prologue))
    if stage == self.num_stages - 1:
      parts.append(("epilogue", (), self.epilogue))
    return parts


def find_blocks(signatures: Sequence[Hashable]) -> BlockLayout | None:
  """Returns the repetition that covers most layers, as one stage; None if there is none.

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
        found, most = BlockLayout(first, period, count, len(signatures)), count * period
  return found


def split_blocks(spec: spec_lib.StageSpec, num_stages: int = 1) -> BlockLayout:
  """Returns the layout of a model in stages of as many whole blocks.

  Raises `ValueError` if there is none, nothing repeats, a block shares parameters
  with another layer, or parameters are frozen.
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
  for layer in spec.model.layers[blocks.first :][: blocks.period * blocks.num_blocks]:
    if layer.ties or layer.name in tied:
      raise ValueError(
          f"Layer {layer.name!r} of a repeating block shares a parameter with "
          "another layer; in one program for all stages only the layers before "
          f"and after the blocks may; {ADVICE}."
      )
  return dataclasses.replace(blocks, num_stages=num_stages)


def make_layout(spec: spec_lib.StageSpec, bounds: Sequence[int]) -> BlockLayout:
  """Returns the layout of stages of whole blocks.

  `bounds` are their first layers, then the number of layers: of `spec`, or of a
  model with more of its blocks, which is only planned. Raises as `split_blocks`.
  """
  blocks, num_layers = split_blocks(spec), bounds[-1]
  num_blocks = blocks.num_blocks + (num_layers - blocks.num_layers) // blocks.period
  layout = BlockLayout(blocks.first, blocks.period, num_blocks, num_layers, len(bounds) - 1)
  assert (0, *layout.cuts, num_layers) == tuple(bounds), bounds
  return layout
