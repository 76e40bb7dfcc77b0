"""Reads the file that says which nodes die, in which step, and where.

Each line is `step,node,at,kind`, for example `12,0/3,17,kill`. The node is
written `pipeline/stage`: whoever owns that stage of that pipeline then. It dies
before it starts the instruction with index `at` of its row, or a phase of the
step if `at` is a name.
"""

from collections.abc import Iterable, Sequence
import csv
import dataclasses
import re

from bamboo_jax import base

PHASES = ("compute", "ties", "reduce", "norm", "refresh", "vote", "apply")
KINDS = ("kill",)

_COLUMNS = ("step", "node", "at", "kind")


@dataclasses.dataclass(frozen=True)
class Fault:
  """One death.

  Attributes:
    step: Step in which the node dies, from 0.
    pipeline: Pipeline of the node.
    stage: Stage of that pipeline that the node owns when the step begins.
    at: Index in its row of the instruction before which it dies; beyond the end
      of the row it dies there. Or one of `PHASES`, before which it dies.
    kind: One of `KINDS`: "kill", at once and without notice.
  """

  step: int
  pipeline: int
  stage: int
  at: int | str
  kind: str = "kill"

  def __post_init__(self) -> None:
    for name in ("step", "pipeline", "stage"):
      if getattr(self, name) < 0:
        raise ValueError(f"{name} must be from 0, got {getattr(self, name)}.")
    if isinstance(self.at, str):
      if self.at not in PHASES:
        raise ValueError(base.suggest(self.at, PHASES, what="phase"))
    elif self.at < 0:
      raise ValueError(
          "at must be the index of an instruction, from 0, or a phase "
          f"({', '.join(PHASES)}), got {self.at}."
      )
    if self.kind not in KINDS:
      raise ValueError(base.suggest(self.kind, KINDS, what="kind of fault"))

  @property
  def place(self) -> str:
    """The node as files write it."""
    return f"{self.pipeline}/{self.stage}"

  def __str__(self) -> str:
    return f"{self.step},{self.place},{self.at},{self.kind}"


def parse_faults(text: str, *, source: str) -> tuple[Fault, ...]:
  """Returns the faults of a file, in its order.

  Empty lines and lines that begin with `#` do not count; the first line may
  name the columns.

  Args:
    text: Contents of the file.
    source: Name of the file, for error messages.

  Raises:
    ValueError: A line is not a fault, or a node dies twice in one step. The
      message names the line, the value, and what is allowed.
  """
  faults, lines = [], {}
  header_allowed = True
  for number, line in enumerate(text.splitlines(), 1):
    if not line.strip() or line.lstrip().startswith("#"):
      continue
    cells = [cell.strip() for cell in next(csv.reader([line]))]
    is_header = header_allowed and cells[0] == _COLUMNS[0]
    header_allowed = False
    try:
      if is_header:
        _check_header(cells)
        continue
      fault = _parse_fault(cells)
    except ValueError as error:
      raise ValueError(f"{source}, line {number}: {error}") from None
    key = (fault.step, fault.place)
    if key in lines:
      raise ValueError(
          f"{source}, line {number}: node {fault.place} dies twice in step "
          f"{fault.step}, the first time in line {lines[key]}."
      )
    lines[key] = number
    faults.append(fault)
  return tuple(faults)


def check_faults(
    faults: Iterable[Fault],
    *,
    num_steps: int,
    num_pipelines: int,
    num_stages: int,
) -> None:
  """Checks that a run has the steps and nodes that `faults` name.

  Raises:
    ValueError: It has not; the message names the fault and the range.
  """
  for fault in faults:
    for name, limit in (
        ("step", num_steps),
        ("pipeline", num_pipelines),
        ("stage", num_stages),
    ):
      value = getattr(fault, name)
      if value >= limit:
        raise ValueError(
            f"Fault {fault}: {name} must be from 0 to {limit - 1}, got {value}."
        )


def _check_header(cells: Sequence[str]) -> None:
  if tuple(cells) != _COLUMNS:
    raise ValueError(
        f"the columns must be {','.join(_COLUMNS)}, got {','.join(cells)}."
    )


def _parse_fault(cells: Sequence[str]) -> Fault:
  if len(cells) != len(_COLUMNS):
    raise ValueError(
        f"a fault has {len(_COLUMNS)} values, {','.join(_COLUMNS)}, got "
        f"{','.join(cells)!r}."
    )
  step, node, at, kind = cells
  if not re.fullmatch(r"\d+", step):
    raise ValueError(f"step must be a whole number from 0, got {step!r}.")
  match = re.fullmatch(r"(\d+)/(\d+)", node)
  if match is None:
    raise ValueError(f"node must be pipeline/stage, such as 0/2, got {node!r}.")
  return Fault(
      step=int(step),
      pipeline=int(match[1]),
      stage=int(match[2]),
      at=int(at) if re.fullmatch(r"-?\d+", at) else at,
      kind=kind,
  )
