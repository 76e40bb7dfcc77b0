"""Lines: the ways of microbatches through the nodes.

Most often a pipeline is one line: each stage has one owner, which computes it
for all microbatches. After a death other nodes that hold a lost stage compute
it for some of them. Node 1 has died, its shadow is 0, and node 5 owns the same
stage in another pipeline:

  pipeline 0  microbatches 0 to 4   0  0  2  3
              microbatches 5 to 7   0  5  2  3
  pipeline 1  microbatches 8 to 15  4  5  6  7

Lines that have nodes in common are scheduled together.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax.schedule import holdings as holdings_lib


@dataclasses.dataclass(frozen=True)
class Line:
  """Microbatches that are computed by the same nodes.

  Attributes:
    owners: Node that computes each stage.
    microbatches: Indices in the global batch, in the order of summation.
    in_flight: As for `scheduler.plan_rows`. On a node the lines of one pipeline
      have it together, but for the next microbatch to be summed of each.
    pipeline: That they belong to.
  """

  owners: tuple[int, ...]
  microbatches: tuple[int, ...]
  in_flight: tuple[int, ...] | None = None
  pipeline: int = 0


Holdings = Mapping[int, holdings_lib.Holdings]


def owners_of(lines: Sequence[Line]) -> dict[int, set[int]]:
  """Returns the stages that each node computes."""
  owned: dict[int, set[int]] = {}
  for line in lines:
    for stage, node in enumerate(line.owners):
      owned.setdefault(node, set()).add(stage)
  return owned
