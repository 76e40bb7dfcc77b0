"""The data of a step that a node holds.

The scheduler derives the owed work from the holdings, so a schedule for the
rest of a step needs only the holdings of the survivors.
"""

from collections.abc import Collection, Iterable, Mapping
import dataclasses
import functools

from bamboo_jax import base
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op
Item = instruction_lib.Item


def input_of(item: Item) -> Item:
  """Returns the same microbatch on the stage before."""
  return base.StageId(item[0] - 1), item[1]


_empty = functools.partial(dataclasses.field, default_factory=set[Item])


@dataclasses.dataclass(frozen=True)
class Holdings:
  """The data of a step on one node, as sets of (stage, microbatch).

  Activations and gradients are kept until the commit, even after they are sent.

  Attributes:
    activations: Outputs of the stage, computed here or received.
    gradients: Gradients with respect to the output of the stage, computed here
      or received.
    residuals: Residuals of forward passes, redundant or not, until the backward
      pass.
    accumulated: Backward passes whose gradients are in this node's accumulator.
  """

  activations: set[Item] = _empty()
  gradients: set[Item] = _empty()
  residuals: set[Item] = _empty()
  accumulated: set[Item] = _empty()

  def add(self, i: instruction_lib.Instruction) -> None:
    """Records a finished instruction, without checks."""
    item = i.item
    match i.op:
      case Op.FORWARD | Op.REDUNDANT_FORWARD:
        self.activations.add(item)
        if item not in self.accumulated:
          self.residuals.add(item)
      case Op.BACKWARD:
        self.residuals.discard(item)
        self.accumulated.add(item)
        if i.stage > 0:
          self.gradients.add(input_of(item))
      case Op.RECV_ACTIVATION:
        self.activations.add(item)
      case Op.RECV_GRAD:
        self.gradients.add(item)

  def limited(
      self, *, residuals: Collection[base.StageId], accumulated: Collection[base.StageId]
  ) -> "Holdings":
    """Returns the holdings with residuals and sums of the given stages only."""
    return dataclasses.replace(
        self,
        residuals={x for x in self.residuals if x[0] in residuals},
        accumulated={x for x in self.accumulated if x[0] in accumulated},
    )

  def numbered(self, numbers: Mapping[int, int]) -> "Holdings":
    """Returns the holdings of some microbatches, each renamed to its value in `numbers`."""
    return Holdings(
        *(
            {(stage, numbers[m]) for stage, m in keys if m in numbers}
            for keys in vars(self).values()
        )
    )


NOTHING = Holdings()  # Never added to.


def after(
    instructions: Iterable[instruction_lib.Instruction], before: Holdings = NOTHING
) -> Holdings:
  """Returns the holdings after `instructions`."""
  held = Holdings(*map(set[Item], vars(before).values()))
  for i in instructions:
    held.add(i)
  return held
