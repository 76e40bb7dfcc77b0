"""What a layer is: the smallest unit of a model that a partition can move.

A stage runs any contiguous layers, so a layer says all that this takes: what it
reads of the microbatch, which parameters it shares with another layer, and pure
functions to initialise and apply it. Layers pass pytrees of float arrays to
each other; integers, such as tokens, come from the microbatch. BERT, ResNet and
GNMT fit the same protocol: what skips a layer travels with its outputs, and
running averages are statistics.
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
  """What a layer holds between steps.

  Attributes:
    params: Parameters, float32: dict by name, possibly nested.
    stats: Statistics that training does not differentiate, such as running
      averages, float32; an empty dict if there are none.
  """

  params: base.PyTree
  stats: base.PyTree


@flax.struct.dataclass
class Loss:
  """What the last layer returns for one microbatch.

  The loss of a step is the sum of `total` over its microbatches divided by the
  sum of `weight`, so microbatches need not weigh the same.

  Attributes:
    total: Sum of the losses of all tokens, in nats, float32 scalar.
    weight: Number of tokens that count, float32 scalar.
  """

  total: jax.Array
  weight: jax.Array


@dataclasses.dataclass(frozen=True)
class Tie:
  """A parameter that a layer shares with an earlier layer.

  Each layer keeps a copy, so that it is complete in any partition. Copies start
  equal and stay equal if each gets the summed gradient of all copies.

  Attributes:
    param: Name of the copy, at the top level of the layer's parameters.
    layer: Name of the layer that owns the parameter.
    layer_param: Its name there, at the top level too.
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
    """What the layer computes.

    Layers of equal kind are the same function of parameters, statistics,
    inputs, batch and key, so that measuring one of them is enough.
    """

  def init(
      self, key: jax.Array, inputs: base.PyTree, batch: Batch
  ) -> Variables:
    """Returns the first variables; reads only shapes of `inputs` and `batch`.

    Args:
      inputs: Output of the layer before, arrays or shapes; None if first.
      batch: The entries `batch_keys` of a microbatch, arrays or shapes.
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

    A step replaces the statistics by the mean over its microbatches of what is
    returned here, each computed from the statistics before the step.

    Args:
      params: May have been updated since `init`.
      stats: From before the step.
      inputs: Output of the layer before; None for the first layer.
      batch: The entries `batch_keys` of the microbatch.
      key: Source of dropout; may be None if nothing is random.
      train: Whether dropout and statistics of the microbatch are used.
    """
