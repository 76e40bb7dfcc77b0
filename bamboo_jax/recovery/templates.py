"""Pipeline templates: the best partition for each number of nodes.

Oobleck (SOSP'23, section 4) plans pipelines in advance, one for each number of
nodes from n0, the least that fits in memory, to n_max. If n_max is at least
n0 + ceil((n0 - 1) / (f + 1)), then any number of nodes from (f + 1) n0 up is
covered by at least f + 1 pipelines without an idle node: x pipelines cover all
numbers from x n0 to x n_max, and the range of x + 1 pipelines adjoins it. With
f + 1 pipelines each layer has f + 1 owners, so any f nodes may be lost.
"""

from collections.abc import Sequence
import itertools
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.plan import cost_model, memory as memory_lib, partition as partition_lib
from bamboo_jax.schedule import lines as lines_lib


class Template(NamedTuple):
  """A pipeline of one stage per node, and the memory of each stage."""

  partition: partition_lib.Partition
  memory_bytes: tuple[int, ...]


def needed_max_nodes(min_nodes: int, *, num_failures: int) -> int:
  """Returns the least n_max with which no node idles (Oobleck, section 4)."""
  return min_nodes + -(-(min_nodes - 1) // (num_failures + 1))  # Rounded up.


def make_templates(
    costs: Sequence[cost_model.LayerCost],
    *,
    num_failures: int,
    memory_limit_bytes: int | None = None,
    min_nodes: int = 1,
    max_nodes: int | None = None,
    num_microbatches: int | None = None,
    upkeep: memory_lib.Upkeep = memory_lib.OVERLAPPED,
    ties: Sequence[cost_model.TieCost] = (),
    cuts: Sequence[int] | None = None,
) -> tuple[Template, ...]:
  """Returns the templates for all numbers of nodes that pipelines may have, growing.

  Each is the exact optimum of `partition.find_split`, whose other arguments
  are passed on.

  Args:
    num_failures: f: number of nodes that may be lost at once.
    min_nodes: Least number of nodes of a pipeline, even if fewer would fit.
    max_nodes: Nodes of the largest pipeline, if that is more than the least number with
      which all nodes can be used; None: about twice those of the smallest. More give
      more choice.
    num_microbatches: Most microbatches that a pipeline gets in a step, which
      bounds its residuals; None: no bound.

  Raises:
    ValueError: `min_nodes` is out of range.
    base.InfeasibleError: A needed number of nodes does not fit in memory, or is
      above the possible number of stages. The message says which, and by how much.
  """
  cuts = range(1, len(costs)) if cuts is None else cuts
  most_nodes = 1 + len(cuts)
  if not 1 <= min_nodes <= most_nodes:
    raise ValueError(
        f"min_nodes must be from 1 to {most_nodes} (the number of layers, or "
        f"of groups that stay together), got {min_nodes}."
    )

  def model(num_nodes: int) -> memory_lib.MemoryModel:
    # Never more in flight than stages: that many microbatches are no bound.
    in_flight = lines_lib.in_flight_bounds(num_nodes, num_microbatches or num_nodes)
    return memory_lib.MemoryModel(costs, in_flight=in_flight, upkeep=upkeep, ties=ties, cuts=cuts)

  def split(num_nodes: int) -> Template:
    memory = model(num_nodes)
    partition = partition_lib.find_split(memory, memory_limit_bytes)
    ends = enumerate(itertools.pairwise(partition.bounds))
    return Template(
        partition, tuple(memory.owner(base.StageId(s), *own).total_bytes for s, own in ends)
    )

  refusals = []
  for least in range(min_nodes, most_nodes + 1):
    try:
      first = split(least)
      break
    except base.InfeasibleError as error:
      refusals.append((partition_lib.least_bytes(model(least)), least, error))
  else:
    # Errors have no order.
    _, num_nodes, error = min(refusals, key=lambda r: r[:2])
    raise base.InfeasibleError(
        f"No pipeline of {min_nodes} to {most_nodes} nodes fits. The one "
        f"of {num_nodes} nodes misses by the least: {error}"
    )
  wanted = 2 * least - 1 if max_nodes is None else max_nodes
  last = max(needed_max_nodes(least, num_failures=num_failures), min(wanted, most_nodes))
  if last > most_nodes:
    raise base.InfeasibleError(
        f"Pipelines of {last} nodes are needed (the smallest has "
        f"{least}, num_failures={num_failures}), but there are only "
        f"{most_nodes} layers, or groups that stay together, and each node "
        "needs one."
    )
  return (first, *map(split, range(least + 1, last + 1)))
