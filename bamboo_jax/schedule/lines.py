"""Lines: the routes of microbatches through the nodes.

Usually a pipeline is one line: each stage has one owner, which computes it for
all microbatches. After a death other nodes that hold a lost stage compute it
for some of them. Node 1 has died, its shadow is 0, and node 5 owns the same
stage in another pipeline:

  pipeline 0  microbatches 0 to 4   0  0  2  3
              microbatches 5 to 7   0  5  2  3
  pipeline 1  microbatches 8 to 15  4  5  6  7

Lines that have nodes in common are scheduled together.

The work that a line owes follows from the holdings of its nodes. Every stage
owes the backward pass of every microbatch that its owner has not accumulated.
The rest follows backwards: a backward pass needs residuals, so a
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

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.schedule import holdings as holdings_lib, instruction as instruction_lib

Transfer = instruction_lib.Transfer


class Line(NamedTuple):
  """Microbatches that are computed by the same nodes.

  Attributes:
    owners: Node that computes each stage.
    microbatches: Indices in the global batch, in the order of summation.
    in_flight: Maximum number of microbatches whose residuals each stage keeps,
      at least 1. A stage that holds more after a failure runs forward passes
      only for the next backward pass. None: no bound, and forward passes come
      first. The lines of one pipeline share the bound on a node; the next
      microbatch to be summed of each line is exempt.
  """

  owners: Sequence[base.NodeId]
  microbatches: Sequence[int]
  in_flight: Sequence[int] | None = None
  pipeline: int = 0


Holdings = Mapping[base.NodeId, holdings_lib.Holdings]


def in_flight_limits(num_stages: int, schedule: str = "1f1b") -> tuple[int, ...] | None:
  """Returns the microbatches in flight that a schedule allows on each stage.

  None: any number, as of "gpipe".
  """
  return None if schedule == "gpipe" else tuple(range(num_stages, 0, -1))


def in_flight_bounds(
    num_stages: int, num_microbatches: int, schedule: str = "1f1b"
) -> tuple[int, ...]:
  """Returns the most microbatches whose residuals each stage keeps at once."""
  limits = in_flight_limits(num_stages, schedule) or (num_microbatches,) * num_stages
  return tuple(min(limit, num_microbatches) for limit in limits)


class Owed(NamedTuple):
  """Work that finishes the step of a line: microbatches per stage, ascending."""

  forwards: list[list[int]]
  backwards: list[list[int]]
  transfers: list[Transfer]


def find_owed(line: Line, holdings: Holdings) -> Owed:
  """Returns the work that finishes the step; a missing node holds nothing.

  Raises `base.InfeasibleError` if a gradient is needed that no owner holds or
  will compute.
  """
  owners = line.owners
  held = [holdings.get(node, holdings_lib.NOTHING) for node in owners]
  owed = Owed([[] for _ in owners], [[] for _ in owners], [])
  for m in line.microbatches:
    output_needed = False
    for s in reversed(base.stages(len(owners))):
      owes_backward = (s, m) not in held[s].accumulated
      if output_needed and owners[s] != owners[s + 1]:
        owed.transfers.append(Transfer("activations", s, m, owners[s], owners[s + 1]))
      if (owes_backward and (s, m) not in held[s].residuals) or (
          output_needed and (s, m) not in held[s].activations
      ):
        owed.forwards[s].append(m)
        output_needed = s > 0 and (s - 1, m) not in held[s].activations
      else:
        output_needed = False
      if not owes_backward:
        continue
      owed.backwards[s].append(m)
      if s + 1 == len(owners) or (s, m) in held[s].gradients:
        continue
      if (s, m) not in held[s + 1].gradients and (s + 1, m) in held[s + 1].accumulated:
        raise base.InfeasibleError(
            f"Stage {s} needs the gradient of microbatch {m}, which node {owners[s + 1]} has used "
            f"for stage {s + 1} but not kept."
        )
      if owners[s] != owners[s + 1]:
        owed.transfers.append(Transfer("gradients", s, m, owners[s + 1], owners[s]))
  return owed
