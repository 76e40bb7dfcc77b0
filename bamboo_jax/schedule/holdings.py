"""The data of a step that a node holds.

The scheduler derives the owed work from the holdings, so a schedule for the
rest of a step needs only the holdings of the survivors.
"""

from collections.abc import Collection, Iterable, Mapping
import dataclasses

from bamboo_jax import base
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op
Item = instruction_lib.Item


def input_of(item: Item) -> Item:
  """Returns the same microbatch on the stage before."""
  return base.StageId(item[0] - 1), item[1]


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

  activations: frozenset[Item] = frozenset()
  gradients: frozenset[Item] = frozenset()
  residuals: frozenset[Item] = frozenset()
  accumulated: frozenset[Item] = frozenset()

  def limited(
      self, *, residuals: Collection[base.StageId], accumulated: Collection[base.StageId]
  ) -> "Holdings":
    """Returns the holdings with residuals and sums of the given stages only."""
    return dataclasses.replace(
        self,
        residuals=frozenset(x for x in self.residuals if x[0] in residuals),
        accumulated=frozenset(x for x in self.accumulated if x[0] in accumulated),
    )

  def numbered(self, numbers: Mapping[int, int]) -> "Holdings":
    """Returns the holdings of some microbatches, each renamed to its value in `numbers`."""
    return Holdings(
        *(
            frozenset((stage, numbers[m]) for stage, m in keys if m in numbers)
            for keys in vars(self).values()
        )
    )

  def __or__(self, other: "Holdings") -> "Holdings":
    sets = zip(vars(self).values(), vars(other).values(), strict=True)
    return Holdings(*(a | b for a, b in sets))


NOTHING = Holdings()


class HoldingsLedger:
  """Holdings that change as instructions finish; without checks."""

  def __init__(self, holdings: Holdings = NOTHING) -> None:
    sets = map(set[Item], vars(holdings).values())
    self.activations, self.gradients, self.residuals, self.accumulated = sets

  def add(self, i: instruction_lib.Instruction) -> None:
    """Records a finished instruction."""
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

  def holdings(self) -> Holdings:
    """Returns the present holdings, as a frozen copy."""
    return Holdings(*map(frozenset, vars(self).values()))


def after(instructions: Iterable[instruction_lib.Instruction]) -> Holdings:
  """Returns the holdings after `instructions`, from none."""
  ledger = HoldingsLedger()
  for i in instructions:
    ledger.add(i)
  return ledger.holdings()
