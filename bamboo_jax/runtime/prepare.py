"""What has to be compiled before nodes can work in some roles."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
import functools
import itertools
from typing import Any

from bamboo_jax.runtime import links as links_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import sums as sums_lib
from bamboo_jax.runtime import ties as ties_lib

PyTree = Any


def find_programs(
    nodes: Mapping[int, node_lib.Node],
    owners: Sequence[Sequence[int]],
    *,
    ties: ties_lib.TieSum,
    evaluate: bool,
    propose: bool,
) -> list[Callable[[], Any]]:
  """Returns calls that compile the programs of local nodes.

  Args:
    nodes: Local nodes by number.
    owners: For each pipeline, the node of each stage.
    ties: Sums of tied parameters.
    evaluate: Whether owners will evaluate.
    propose: See `stage.StagePrograms.compile`.
  """
  owned = {(stage, n) for row in owners for stage, n in enumerate(row)}
  jobs = []
  for number, node in nodes.items():
    for stage, programs in node.programs.items():
      jobs.append(
          functools.partial(
              programs.compile,
              evaluate=evaluate and (stage, number) in owned,
              propose=propose,
          )
      )
    jobs.append(functools.partial(ties.prepare, node.device, node.programs))
  return jobs


def after_each_death(
    owners: Sequence[Sequence[int]], shadows: Sequence[Mapping[int, int]]
) -> Iterator[list[tuple[int, ...]]]:
  """Yields the owners after the death of each node that has shadows.

  Args:
    owners: For each pipeline, the node of each stage.
    shadows: For each pipeline, the node that holds a replica of a stage.
  """
  for pipeline, replicas in enumerate(shadows):
    row = owners[pipeline]
    for victim in sorted({row[stage] for stage in replicas}):
      after = [tuple(r) for r in owners]
      after[pipeline] = tuple(
          replicas.get(stage, node) if node == victim else node
          for stage, node in enumerate(row)
      )
      yield after


def find_jobs(
    owners: Sequence[Sequence[int]],
    shadows: Sequence[Mapping[int, int]],
    *,
    shares: Sequence[Sequence[int]],
    local: Container[int],
    links: links_lib.Links,
    sums: sums_lib.Sums,
    ties: ties_lib.TieSum,
    like: Sequence[PyTree],
) -> list[Callable[[], Any]]:
  """Returns calls that compile the links and sums of some roles.

  What has been compiled before takes no time.

  Args:
    owners: For each pipeline, the node of each stage.
    shadows: For each pipeline, the node that holds a replica of a stage.
    shares: For each pipeline, the shares that it computes.
    local: Nodes of this process; what does not concern them is left out.
    links: All links of this process.
    sums: All sums of this process.
    ties: Sums of tied parameters.
    like: Shapes of what replicas are sent, by stage.
  """
  jobs = []
  for row, replicas in zip(owners, shadows, strict=True):
    for stage, ends in enumerate(itertools.pairwise(row)):
      if ends[0] != ends[1] and any(node in local for node in ends):
        jobs.append(functools.partial(links.connect, stage, *ends))
    for stage, shadow in sorted(replicas.items()):
      if row[stage] in local or shadow in local:
        ends = (row[stage], shadow)
        name = ("refresh", stage)
        jobs.append(functools.partial(links.get, name, *ends, like=like[stage]))
    jobs.append(functools.partial(ties.connect, row, local))
  for stage in range(len(like)):
    holders = find_holders(owners, shares, stage)
    if any(node in local for node in holders):
      jobs.append(functools.partial(sums.prepare, stage, holders))
  return jobs


def find_holders(
    owners: Sequence[Sequence[int]], shares: Sequence[Sequence[int]], stage: int
) -> list[int]:
  """Returns the node that holds each share of a stage."""
  holder = {
      share: row[stage]
      for row, own in zip(owners, shares, strict=True)
      for share in own
  }
  return [holder[share] for share in range(len(holder))]
