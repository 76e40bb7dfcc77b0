"""A layer: the smallest unit of a model that a partition can move.

A layer tells what it reads of the microbatch and which parameters it shares,
and has pure functions to initialise and apply it. Layers pass pytrees of float
arrays; integers, such as tokens, come from the microbatch. BERT, ResNet and
GNMT fit too: skip connections travel with the outputs, and running averages are
statistics.
"""

from collections.abc import Hashable, Mapping
import dataclasses
from typing import Protocol

import flax.struct
import jax

from bamboo_jax import base

Batch = Mapping[str, jax.Array]


@flax.struct.dataclass
class Variables:
  """What a layer holds between steps, float32.

  `params` is a dict by name, possibly nested; `stats` are not differentiated,
  such as running averages, and may be empty.
  """

  params: base.PyTree
  stats: base.PyTree


@flax.struct.dataclass
class Loss:
  """Result of the last layer for one microbatch, float32 scalars.

  `total` sums the losses of all tokens, in nats; `weight` is the number of
  tokens that count. The loss of a step is the sum of `total` over its
  microbatches divided by that of `weight`, so microbatches need not weigh the
  same. `correct`, if it is there, is the number of right guesses among them.
  """

  total: jax.Array
  weight: jax.Array
  correct: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Tie:
  """A parameter that a layer shares with an earlier layer, `layer`.

  Each layer keeps a copy, so that it is complete in any partition. Copies start
  equal and stay equal if each gets the summed gradient of all copies. Both
  `param` and `layer_param`, its name in the owner, are top-level names.
  """

  param: str
  layer: str
  layer_param: str


class Layer(Protocol):
  """A layer of a model; immutable, and its methods are pure and traceable."""

  @property
  def name(self) -> str:
    """Unique in the model; keys parameters and checkpoints."""

  @property
  def batch_keys(self) -> tuple[str, ...]:
    """Entries of the microbatch that the layer reads."""

  @property
  def ties(self) -> tuple[Tie, ...]:
    """Parameters shared with earlier layers."""

  @property
  def kind(self) -> Hashable:
    """Layers of equal kind compute the same function: one is measured."""

  def init(
      self, key: jax.Array, inputs: base.PyTree, batch: Batch
  ) -> Variables:
    """Returns the first variables; reads only shapes of `inputs` and `batch`.

    `inputs` are the output of the layer before (None if first), `batch` the
    entries `batch_keys` of a microbatch; both may be shapes instead of arrays.
    """

  def apply(
      self,
      params: base.PyTree,
      stats: base.PyTree,
      inputs: base.PyTree,
      batch: Batch,
      *,
      key: jax.Array | None,
      train: bool,
  ) -> tuple[base.PyTree, base.PyTree]:
    """Returns the outputs, a `Loss` if last, and the statistics afterwards.

    A step replaces the statistics by the mean over its microbatches of the
    returned ones, each computed from `stats`, those before the step. `inputs`
    is None for the first layer, `key` may be None if nothing is random. `train`
    turns on dropout and statistics of the microbatch.
    """
