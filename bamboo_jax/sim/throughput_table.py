"""Throughput by number of nodes, from published measurements.

Such a table does not describe pipelines, so the cost of a node with two stages
and of a vacant stage is assumed, as published simulators do. A number of nodes
that is not in the table is an error: nothing is interpolated. A table by
pipelines (dp) and stages (pp), such as Parcae's (NSDI'24), gives a number of
nodes the best throughput that fits.
"""

from collections.abc import Mapping
import csv
import dataclasses
import math
import os
import types

from bamboo_jax import base
from bamboo_jax.base import packaged
from bamboo_jax.sim import speed as speed_lib

Delay = speed_lib.Delay
Pipelines = speed_lib.Pipelines
StepCost = speed_lib.StepCost

_DOUBLED_FACTOR = 1.5  # Relative time of a step if nodes own two stages.
# Delay of a step that shadows finish, as a share of its rest.
_REDONE_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Table:
  """Throughput of a system by number of nodes; messages call it `name`."""

  name: str
  samples_per_step: float
  samples_per_sec: Mapping[int, float]

  def __post_init__(self) -> None:
    if not self.samples_per_sec:
      raise ValueError(f"{self.name} has no throughput.")
    if not self.samples_per_step > 0:
      raise ValueError(
          f"{self.name}: samples_per_step must be above 0, got "
          f"{self.samples_per_step}."
      )

  def step_secs(self, num_nodes: int) -> float:
    """Returns the time of a step; `ValueError` if the table lacks the nodes."""
    if num_nodes not in self.samples_per_sec:
      known = sorted(self.samples_per_sec)
      raise ValueError(
          f"{self.name} has no throughput for {num_nodes} nodes, only for "
          f"{', '.join(map(str, known))}."
      )
    return self.samples_per_step / self.samples_per_sec[num_nodes]


def read_table(
    path: str | os.PathLike[str],
    *,
    column: str,
    samples_per_step: float,
    where: Mapping[str, str] = types.MappingProxyType({}),
) -> Table:
  """Returns a table from a comma-separated file with a header.

  The file has a column "nodes", or both of "dp" and "pp".

  Args:
    column: The column with the throughput; lines with "OOM" are skipped.
    where: Required values of other columns, such as the model.

  Raises:
    OSError: The file cannot be read.
    ValueError: The file is malformed; names file and line.
  """
  rates: dict[int, float] = {}
  text = packaged.find_file(path).read_text(encoding="utf-8-sig")
  reader = csv.DictReader(text.splitlines())
  columns = reader.fieldnames or ()
  sizes = ("dp", "pp") if {"dp", "pp"} <= {*columns} else ("nodes",)
  for name in (*sizes, column, *where):
    if name not in columns:
      raise ValueError(
          f"{path}, line 1: {base.suggest(name, columns, what='column')}"
      )
  for line in reader:
    if any(line[name] != value for name, value in where.items()):
      continue
    at = f"{path}, line {reader.line_num}"
    if line[column] == "OOM":
      continue
    try:
      num_nodes = math.prod(int(line[size]) for size in sizes)
      rate = float(line[column])
    except (TypeError, ValueError):
      given = ", ".join(repr(line[size]) for size in sizes)
      raise ValueError(
          f"{at}: {', '.join(sizes)} and {column} must be numbers, got {given} "
          f"and {line[column]!r}."
      ) from None
    if num_nodes < 1 or not 0 < rate < math.inf:
      raise ValueError(
          f"{at}: nodes must be at least 1 and {column} above 0, got "
          f"{num_nodes} and {rate}."
      )
    if len(sizes) == 2:
      rate = max(rate, rates.get(num_nodes, 0.0))
    elif num_nodes in rates:
      raise ValueError(f"{at}: {num_nodes} nodes occur twice.")
    rates[num_nodes] = rate
  if len(sizes) == 2:
    best = 0.0
    for num_nodes in range(min(rates, default=1), max(rates, default=0) + 1):
      best = rates[num_nodes] = max(best, rates.get(num_nodes, 0.0))
  words = [column, *(f"{name} {value}" for name, value in where.items())]
  return Table(f"{path} ({', '.join(words)})", samples_per_step, rates)


@dataclasses.dataclass(frozen=True)
class TableSpeed:
  """Looks up the speed of pipelines; a `speed.Speed`.

  A place covered by a shadow or by other pipelines counts as a node.
  """

  table: Table

  def step(self, pipelines: Pipelines, *, drops: bool) -> StepCost:
    """Returns the cost of a step."""
    table = self.table
    places = sum(p.partition.num_stages for p in pipelines)
    secs = table.step_secs(places)
    if any(len({*p.roles.owners}) < p.roles.num_stages for p in pipelines):
      secs *= _DOUBLED_FACTOR
    samples = table.samples_per_step
    num_vacant = sum(bool(p.vacant) for p in pipelines)
    if not drops:
      num_whole = max(1, len(pipelines) - num_vacant)
      return StepCost(secs * len(pipelines) / num_whole, samples)
    dropped = samples * num_vacant / len(pipelines)
    return StepCost(secs, samples - dropped, dropped)

  def finish(self, rung: str, before: Pipelines, after: Pipelines) -> Delay:
    """Returns the delay of a step in which nodes are lost."""
    if rung == "shadow":
      return Delay(left_share=_REDONE_SHARE)
    cost = self.step(after, drops=False)
    longer_secs = cost.secs - self.step(before, drops=False).secs
    return Delay(max(0.0, longer_secs))
