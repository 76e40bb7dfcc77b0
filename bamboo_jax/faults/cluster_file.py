"""Reads what happens to the nodes of a cluster, in which step.

Lines are as in `fault_file`, `step,node,at,kind`, with more kinds. The node is
written `pipeline/stage`, whoever owns that stage then, or by its name; `at` may
be empty: any time in the step.

  kill    the worker of the node is killed
  node    its worker and its agent are
  stop    its worker is stopped, and does not know of it
  notice  its preemption is announced; nobody is killed
  leader  as `node`, of whoever makes the next view; `node` is empty
  zone    as `node`, of all nodes in the zone that `node` names
  all     the workers of all nodes are killed; `node` is empty
  join    a node joins; training waits for it at the start of the step; `node`
          and `at` are empty
"""

from collections.abc import Iterable, Sequence
import csv
import dataclasses
import re

from bamboo_jax import base
from bamboo_jax.faults import fault_file

KINDS = ("kill", "node", "stop", "notice", "leader", "zone", "all", "join")
_WITHOUT_NODE = ("leader", "all", "join")
COLUMNS = ("step", "node", "at", "kind")


@dataclasses.dataclass(frozen=True)
class ClusterFault:
  """Something that happens on purpose.

  Attributes:
    line: Its line in the file, which tells it from others.
    step: Step in which it happens, from 0.
    node: Whom it happens to; see above.
    at: Instruction or phase before which it happens, see `fault_file.Fault`;
      None: any time in the step.
    kind: One of `KINDS`.
  """

  line: int
  step: int
  node: str
  at: int | str | None
  kind: str

  def __post_init__(self) -> None:
    if self.kind not in KINDS:
      raise ValueError(base.suggest(self.kind, KINDS, what="kind of fault"))
    if self.kind in _WITHOUT_NODE and self.node:
      raise ValueError(f"{self.kind} takes no node, got {self.node!r}.")
    if self.kind not in _WITHOUT_NODE and not self.node:
      raise ValueError(f"{self.kind} needs a node, pipeline/stage or a name.")
    if self.at is not None and self.place is None:
      raise ValueError(
          f"at={self.at} needs a node written pipeline/stage, got "
          f"{self.node!r}."
      )
    if self.kind == "join" and self.step < 1:
      raise ValueError("A node can join from step 1 on.")
    if self.place is not None and self.at is not None:
      fault_file.Fault(self.step, *self.place, at=self.at)  # Checks `at`.

  @property
  def place(self) -> tuple[int, int] | None:
    """Pipeline and stage; None if the node is named otherwise."""
    match = re.fullmatch(r"(\d+)/(\d+)", self.node)
    return (int(match[1]), int(match[2])) if match else None


def parse_cluster_faults(text: str, *, source: str) -> tuple[ClusterFault, ...]:
  """Returns the faults of a file, in its order.

  Args:
    text: Contents of the file.
    source: Name of the file, for error messages.

  Raises:
    ValueError: A line is not a fault; names file, line, value, and what is
      allowed.
  """
  faults = []
  for number, line in enumerate(text.splitlines(), 1):
    if not line.strip() or line.lstrip().startswith("#"):
      continue
    cells = [cell.strip() for cell in next(csv.reader([line]))]
    if not faults and cells == list(COLUMNS):
      continue
    try:
      faults.append(_parse(number, cells))
    except ValueError as error:
      raise ValueError(f"{source}, line {number}: {error}") from None
  return tuple(faults)


def check_cluster_faults(
    faults: Iterable[ClusterFault],
    *,
    num_steps: int,
    num_pipelines: int,
    num_stages: int,
    source: str,
) -> None:
  """Raises `ValueError` unless a run has the steps and places of `faults`."""
  limits = (("pipeline", num_pipelines), ("stage", num_stages))
  for fault in faults:
    values = zip(fault.place or (0, 0), limits, strict=True)
    for value, (name, limit) in [
        (fault.step, ("step", num_steps)),
        *values,
    ]:
      if value >= limit:
        raise ValueError(
            f"{source}, line {fault.line}: {name} must be from 0 to "
            f"{limit - 1}, got {value}."
        )


def _parse(line: int, cells: Sequence[str]) -> ClusterFault:
  if len(cells) != len(COLUMNS):
    raise ValueError(
        f"a fault has {len(COLUMNS)} values, {','.join(COLUMNS)}, got "
        f"{','.join(cells)!r}."
    )
  step, node, at, kind = cells
  if not re.fullmatch(r"\d+", step):
    raise ValueError(f"step must be a whole number from 0, got {step!r}.")
  point: int | str | None = at or None
  if re.fullmatch(r"-?\d+", at):
    point = int(at)
  return ClusterFault(line, int(step), node, point, kind)
