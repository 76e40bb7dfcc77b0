"""The work owed in a step, derived from the nodes' holdings.

Every stage owes the backward pass of every microbatch that its owner has not
accumulated. The rest follows backwards: a backward pass needs residuals, so a
forward pass if its owner has none; a forward pass needs its input, so a forward
pass of the stage before if no possible sender has it. At the start of a step
all passes are owed. After a failure the shadow owns the victim's stage and owes
its backward passes for all microbatches, since the accumulator is lost:
Bamboo's lazy redundant backward passes (NSDI'23, section 5). Node 1 dies, and
node 0 is its shadow:

  owners  held before               owed after the death
  node 0  0F0 0F1                   1F0 1F1 1B0 1B1, and 0B0 0B1 as before
  node 1  1F0 1F1 (dead)
  node 2  2F0 2B0 2F1               2B1, and both gradients are sent to node 0

Residuals of redundant forward passes on node 0 would save it 1F0 and 1F1.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.schedule import holdings as holdings_lib, instruction as instruction_lib

Transfer = instruction_lib.Transfer


@dataclasses.dataclass(frozen=True)
class Owed:
  """Work that finishes a step: microbatches per stage, ascending.

  Attributes:
    forwards: Forward passes of the owner.
    backwards: Backward passes of the owner.
    redundant: Forward passes of the shadow, for stages that have one.
    transfers: Transfers between nodes, in no particular order.
  """

  forwards: tuple[tuple[int, ...], ...]
  backwards: tuple[tuple[int, ...], ...]
  redundant: Mapping[base.StageId, tuple[int, ...]]
  transfers: tuple[Transfer, ...]


def find_owed(
    *,
    owners: Sequence[base.NodeId],
    microbatches: Sequence[int],
    holdings: Mapping[base.NodeId, holdings_lib.Holdings],
    shadows: Mapping[base.StageId, base.NodeId],
    redundant: Collection[int],
) -> Owed:
  """Returns the work that finishes the step.

  Args:
    microbatches: Microbatches of the line, in the order of summation.
    holdings: Data that each node holds; a missing node holds nothing.
    shadows: Node that runs redundant forward passes of a stage; it must own or
      shadow the stage before, whose output it needs (stage 0 needs none).
    redundant: Microbatches whose redundant forward passes are owed, unless they
      are done or no node has their input.

  Raises:
    ValueError: `shadows` does not fit.
    base.InfeasibleError: A gradient is needed that no owner holds or will
      compute.
  """
  _check_shadows(owners, shadows)
  held = [holdings.get(node, holdings_lib.NOTHING) for node in owners]
  forwards: list[list[int]] = [[] for _ in owners]
  backwards: list[list[int]] = [[] for _ in owners]
  transfers = []
  for m in microbatches:
    output_needed = False
    for s in reversed(base.stages(len(owners))):
      owes_backward = (s, m) not in held[s].accumulated
      if output_needed and owners[s] != owners[s + 1]:
        transfers.append(Transfer("A", s, m, owners[s], owners[s + 1]))
      if (owes_backward and (s, m) not in held[s].residuals) or (
          output_needed and (s, m) not in held[s].activations
      ):
        forwards[s].append(m)
        output_needed = s > 0 and (s - 1, m) not in held[s].activations
      else:
        output_needed = False
      if not owes_backward:
        continue
      backwards[s].append(m)
      if s + 1 == len(owners) or (s, m) in held[s].gradients:
        continue
      _check_gradient(s, m, sender=owners[s + 1], held=held[s + 1])
      if owners[s] != owners[s + 1]:
        transfers.append(Transfer("G", s, m, owners[s + 1], owners[s]))
  return Owed(
      tuple(map(tuple, forwards)),
      tuple(map(tuple, backwards)),
      redundant=_redundant(
          [m for m in microbatches if m in redundant],
          owners=owners,
          holdings=holdings,
          shadows=shadows,
          forwards=forwards,
      ),
      transfers=tuple(transfers),
  )


def _check_gradient(
    stage: base.StageId, microbatch: int, *, sender: base.NodeId, held: holdings_lib.Holdings
) -> None:
  """Checks that `sender` has, or will have, the gradient that a stage needs."""
  if (stage, microbatch) not in held.gradients and ((stage + 1, microbatch) in held.accumulated):
    raise base.InfeasibleError(
        f"Stage {stage} needs the gradient of microbatch {microbatch}, which "
        f"node {sender} has used for stage {stage + 1} but not kept."
    )


def _redundant(
    microbatches: Sequence[int],
    *,
    owners: Sequence[base.NodeId],
    holdings: Mapping[base.NodeId, holdings_lib.Holdings],
    shadows: Mapping[base.StageId, base.NodeId],
    forwards: Sequence[Sequence[int]],
) -> dict[base.StageId, tuple[int, ...]]:
  redundant: dict[base.StageId, tuple[int, ...]] = {}
  for stage, node in sorted(shadows.items()):
    before = base.StageId(stage - 1)
    held = holdings.get(node, holdings_lib.NOTHING)
    if stage == 0:
      inputs = set(microbatches)
    elif node == owners[before]:
      inputs = set(forwards[before])
    else:
      inputs = set(redundant[before])
    redundant[stage] = tuple(
        m
        for m in microbatches
        if (stage, m) not in held.residuals and (m in inputs or (before, m) in held.activations)
    )
  return redundant


def _check_shadows(
    owners: Sequence[base.NodeId], shadows: Mapping[base.StageId, base.NodeId]
) -> None:
  for stage, node in shadows.items():
    if stage not in range(len(owners)):
      raise ValueError(f"shadows names stage {stage}, there are {len(owners)}.")
    if node == owners[stage] or node not in owners:
      raise ValueError(
          f"The shadow of stage {stage} must be another node of the pipeline "
          f"than its owner {owners[stage]}, got {node}."
      )
    before = base.StageId(stage - 1)
    if stage > 0 and node not in (owners[before], shadows.get(before)):
      raise ValueError(
          f"The shadow of stage {stage} must own or shadow the stage before, "
          f"whose output is its input; node {node} does not."
      )
