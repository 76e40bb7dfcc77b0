"""What has to be compiled before nodes can work in some roles."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
from typing import Any

from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import ties as ties_lib


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
