"""Files of injected faults, and when each is due.

A line is `step,node,at,kind`, for example `12,0/3,17,kill`. Steps count from 0,
unlike in logs, where this step has number 13. The node is written
`pipeline/stage`, for the node that owns that stage at the time, or by its name.
The fault comes before the node starts the instruction with index `at` of its
row, or before a phase of the step if `at` is a name, or at any time in the step
if `at` is empty.

  kill    the node dies: in a cluster, its worker is killed
  node    its worker and its agent are killed
  stop    its worker is suspended (SIGSTOP)
  notice  its preemption is announced; no process is killed
  leader  as `node`, for the node that makes the next view; `node` is empty
  zone    as `node`, for all members in the zone that `node` names
  all     all nodes die at once and restart; `node` is empty
  slow    passes of the node take 5 times as long from this step on; slow:2 twice
          as long, and slow:2:20 until step 20
  join    a node joins; training waits for it at the start of the step, and it
          joins sooner if too few nodes remain to reach that step; `node` and
          `at` are empty
"""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import csv
import dataclasses
import math
import random
import re
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import packaged, types

PHASES = ("compute", "ties", "reduce", "norm", "refresh", "vote", "apply")
KINDS = ("kill", "node", "stop", "notice", "leader", "zone", "all", "join", "slow")
COLUMNS = ("step", "node", "at", "kind")

_WITHOUT_NODE = ("leader", "all", "join")
SPARED = ("join", "notice", "slow")  # No node dies of these.


@dataclasses.dataclass(frozen=True)
class Fault:
  """One injected fault; `ValueError` if its fields do not fit together.

  Attributes:
    step: Step in which it happens, from 0; logs count from 1.
    node: The node it hits, `pipeline/stage` or a name; or a zone; or "".
    at: Index in the node's row of the instruction before which it happens, at
      most the length of the row; or one of `PHASES`; or None: at any time.
    kind: One of `KINDS`.
    line: Line number in the file, which identifies the fault.
    factor: For the kind "slow": how many times as long passes take, above 1.
    until: The step in which they take their usual time again; None: never.
  """

  step: int
  node: str
  at: int | str | None = None
  kind: str = "kill"
  line: int = dataclasses.field(default=0, compare=False)
  factor: float = 5.0
  until: int | None = None

  def __post_init__(self) -> None:
    if self.step < 0:
      raise ValueError(f"step must be at least 0, got {self.step}.")
    if self.kind not in KINDS:
      raise ValueError(base.suggest(self.kind, KINDS, what="kind of fault"))
    if self.kind in _WITHOUT_NODE and self.node:
      raise ValueError(f"{self.kind} takes no node, got {self.node!r}.")
    if self.kind not in _WITHOUT_NODE and not self.node:
      raise ValueError(f"{self.kind} needs a node, pipeline/stage or a name.")
    if self.kind == "join" and self.step < 1:
      raise ValueError("A node can join from step 1 on.")
    if self.kind == "slow" and self.at is not None:
      raise ValueError(f"slow begins with a step, got at={self.at}.")
    if not 1 < self.factor < math.inf:
      raise ValueError(f"The factor of slow must be above 1, got {self.factor}.")
    if self.until is not None and self.until <= self.step:
      raise ValueError(f"slow must end after step {self.step}, got {self.until}.")
    if self.at is not None:
      self._check_point()

  @property
  def place(self) -> types.Place | None:
    """Place of the node; None if `node` is not written pipeline/stage, or is a zone."""
    if self.kind == "zone":
      return None
    try:
      return types.Place.parse(self.node)
    except ValueError:
      return None

  def __str__(self) -> str:
    at = "" if self.at is None else self.at
    slow = f":{self.factor:g}" if self.kind == "slow" else ""
    until = "" if self.until is None else f":{self.until}"
    return f"{self.step},{self.node},{at},{self.kind}{slow}{until}"

  def _check_point(self) -> None:
    if self.place is None:
      raise ValueError(
          f"at={self.at} needs a node written pipeline/stage, such as 0/2, got " f"{self.node!r}."
      )
    if isinstance(self.at, str):
      if self.at not in PHASES:
        raise ValueError(base.suggest(self.at, PHASES, what="phase"))
    elif self.at is not None and self.at < 0:
      raise ValueError(
          "at must be the index of an instruction, at least 0, or a phase "
          f"({', '.join(PHASES)}), got {self.at}."
      )


def parse_faults(text: str, *, source: str) -> tuple[Fault, ...]:
  """Returns the faults of a file, in its order.

  Empty lines and `#` comments are skipped; the first line may name the columns.
  Raises `ValueError` with `source` and line if one is not a fault, or a node
  dies twice in one step.
  """
  faults: dict[tuple[int, str, int], Fault] = {}
  lines = [
      (number, [cell.strip() for cell in next(csv.reader([line]))])
      for number, line in enumerate(text.splitlines(), 1)
      if line.strip() and not line.lstrip().startswith("#")
  ]
  if lines and lines[0][1][0] == COLUMNS[0]:
    number, cells = lines.pop(0)
    if tuple(cells) != COLUMNS:
      raise ValueError(
          f"{source}, line {number}: the columns must be {','.join(COLUMNS)}, "
          f"got {','.join(cells)}."
      )
  for number, cells in lines:
    try:
      fault = _parse(number, cells)
    except ValueError as error:
      raise ValueError(f"{source}, line {number}: {error}") from None
    is_death = fault.kind == "kill" and fault.at is not None
    key = (fault.step, fault.node, 0 if is_death else number)
    if key in faults:
      raise ValueError(
          f"{source}, line {number}: node {fault.node} dies twice in step "
          f"{fault.step}, the first time in line {faults[key].line}."
      )
    faults[key] = fault
  return tuple(faults.values())


def render(faults: Iterable[Fault]) -> str:
  """Returns the file that `parse_faults` reads."""
  return "\n".join([",".join(COLUMNS), *map(str, faults)]) + "\n"


def read_faults(path: str, **sizes: int) -> tuple[Fault, ...]:
  """Returns the faults of a file, checked against the `sizes` of a run.

  Raises `OSError`, or `ValueError` as `parse_faults` and `check_faults`, or if
  there is no fault.
  """
  text = packaged.find_file(path).read_bytes().decode("utf-8-sig", "replace")
  faults = parse_faults(text, source=path)
  if not faults:
    raise ValueError(
        f"{path} has no fault; a line is {','.join(COLUMNS)}, such as " "3,0/1,5,kill."
    )
  check_faults(faults, source=path, **sizes)
  return faults


def check_faults(
    faults: Iterable[Fault],
    *,
    num_steps: int,
    num_pipelines: int,
    num_stages: int,
    num_instructions: int,
    source: str,
) -> None:
  """Raises `ValueError` unless a run has the steps and places of `faults`.

  `num_instructions` is an upper bound on the instructions of a row.
  """
  for fault in faults:
    place = fault.place or types.Place(0, base.StageId(0))
    at = fault.at if isinstance(fault.at, int) else 0
    for name, value, limit in (
        ("step", fault.step, num_steps),
        ("at", at, num_instructions),
        ("pipeline", place.pipeline, num_pipelines),
        ("stage", place.stage, num_stages),
    ):
      if value >= limit:
        raise ValueError(
            f"{source}, line {fault.line}: {name} must be from 0 to " f"{limit - 1}, got {value}."
        )


def check_nodes(
    faults: Sequence[Fault], *, num_nodes: int, zones: Collection[str], source: str
) -> None:
  """Raises `ValueError` if a fault names a node or zone that cannot exist.

  Nodes are n0, n1, ..., including nodes that join later. If all nodes may die,
  they restart under new names.
  """
  num_deaths = sum(f.kind not in SPARED for f in faults)
  may_all_die = num_deaths >= num_nodes or any(f.kind in ("all", "zone") for f in faults)
  most = num_nodes + sum(f.kind == "join" for f in faults)
  most *= 1 + may_all_die * len(faults)
  for fault in faults:
    where = f"{source}, line {fault.line}:"
    if fault.kind == "zone" and fault.node not in zones:
      suggestion = base.suggest(fault.node, zones, what="zone")
      raise ValueError(f"{where} {suggestion}")
    if fault.place or not fault.node or fault.kind == "zone":
      continue
    number = re.fullmatch(r"n(0|[1-9]\d*)", fault.node)
    if not number or int(number[1]) >= most:
      raise ValueError(
          f"{where} there is no node {fault.node!r}; nodes are n0 to "
          f"n{most - 1}, or pipeline/stage."
      )


def find_missed(
    faults: Iterable[Fault], happened: Collection[int], *, first: int, end: int, source: str
) -> list[str]:
  """Returns a warning for each fault that was due but did not happen.

  Args:
    happened: Lines of the faults that did happen.
    first: First step that was run.
    end: Step after the last one that was run.
    source: The file, for messages.
  """
  return [
      f"warning: {source}, line {fault.line}: {fault} never happened: " f"{_explain_missed(fault)}."
      for fault in faults  # A join is due at the end of the step before its own.
      if first <= fault.step - (fault.kind == "join") and fault.step < end
      if fault.line not in happened
  ]


def _explain_missed(fault: Fault) -> str:
  # What may come at any time in a step may come after the last one.
  ended = ", or the run ended before" * (fault.at is None and fault.kind != "slow")
  if fault.kind == "zone":
    return f"no live node was in zone {fault.node}{ended}"
  if fault.place:
    return f"no live node owned {fault.node} then{ended}"
  if fault.node:
    return f"no live node was {fault.node}{ended}"
  return "the run ended before"


@dataclasses.dataclass(frozen=True)
class Due:
  """A fault that is due.

  `owner` is the node that owned its place at the start of the step; None if the
  fault has no place.
  """

  fault: Fault
  owner: base.NodeId | None


def find_joins(faults: Iterable[Fault], *, step: int | None = None, after: int = -1) -> list[Due]:
  """Returns the joins of `step`, or of all steps above `after`, by step."""
  joins = [f for f in faults if f.kind == "join" and f.step > after]
  chosen = [f for f in joins if step in (None, f.step)]
  return [Due(f, None) for f in sorted(chosen, key=lambda f: f.step)]


class FaultsDue:
  """The faults of one step that this process injects.

  A fault with `at` is due before that instruction or phase, in the process that
  hosts the owner of its place; others, except joins, as the step begins, in all
  processes: each carries out what hits its own nodes.

  Args:
    step: The step, from 0.
    owners: Node of each place at the start of the step; None for one without a node.
    hosted: The nodes that this process hosts.

  Attributes:
    slowed: The faults by which nodes become slow in this step.
  """

  def __init__(
      self,
      faults: Iterable[Fault],
      *,
      step: int,
      owners: Mapping[types.Place, base.NodeId | None],
      hosted: Collection[base.NodeId],
  ) -> None:
    self._num_run = collections.Counter[int]()
    due = [
        Due(fault, owners.get(fault.place) if fault.place else None)
        for fault in faults
        if fault.step == step and fault.kind != "join"
    ]
    self.slowed = [d for d in due if d.fault.kind == "slow"]
    self._at = [d for d in due if d.fault.at is not None and d.owner in hosted]
    self._any_time = [d for d in due if d.fault.at is None]

  def __bool__(self) -> bool:
    return bool(self._at or self._any_time)

  def pop_at_instruction(self, node: base.NodeId) -> list[Due]:
    """Returns and removes the faults due before `node`'s next instruction."""
    if not self:
      return []
    index = self._num_run[node]
    self._num_run[node] += 1
    return self._pop(lambda d: d.owner == node and d.fault.at == index)

  def pop_at_phase(self, phase: str) -> list[Due]:
    """Returns and removes the faults due before `phase`.

    After the rows have ended, these include faults beyond the end of a row.
    """
    has_ended = phase != PHASES[0]
    return self._pop(lambda d: d.fault.at == phase or (has_ended and isinstance(d.fault.at, int)))

  def _pop(self, is_due: Callable[[Due], bool]) -> list[Due]:
    due = [d for d in self._at if is_due(d)]
    self._at = [d for d in self._at if d not in due]
    due, self._any_time = [*self._any_time, *due], []
    return due


def make_random_kills(
    num_kills: int,
    *,
    seed: int,
    num_steps: int,
    num_pipelines: int,
    num_stages: int,
    kinds: Sequence[str] = ("kill",),
    zones: Sequence[str] = ("a",),
) -> tuple[Fault, ...]:
  """Returns kills spread over a run, each at any time in a random step.

  As many nodes as died join in a later step, so that every place has a node
  again before the next kill.

  Args:
    num_kills: From 1 to `(num_steps - 1) / 2`.
    kinds: Kinds to draw from, those of `KINDS` except "join". No node
      joins after "all", because the agents then restart their workers, nor
      after "slow", which ends in the step in which a node would join.

  Raises:
    ValueError: `num_kills` or a kind is out of range.
  """
  allowed = [kind for kind in KINDS if kind != "join"]
  for kind in kinds:
    if kind not in allowed:
      raise ValueError(base.suggest(kind, allowed, what="value of --kinds"))
  if num_kills < 1:
    raise ValueError(f"--random_kills must be at least 1, got {num_kills}.")
  if num_steps < 2 * num_kills + 1:
    raise ValueError(
        f"--random_kills={num_kills} takes at least {2 * num_kills + 1} steps, "
        f"got config.num_steps={num_steps}."
    )
  rng = random.Random(seed)
  faults: list[Fault] = []
  for i in range(num_kills):
    first = i * (num_steps - 1) // num_kills
    last = (i + 1) * (num_steps - 1) // num_kills - 1
    step = rng.randint(first, last - 1)
    node = f"{rng.randrange(num_pipelines)}/{rng.randrange(num_stages)}"
    kind, num_joins = rng.choice(kinds), 1
    if kind == "zone":
      node = rng.choice(zones)
      num_joins = -(num_pipelines * num_stages // -len(zones))
    elif kind in ("leader", "all"):
      node, num_joins = "", int(kind == "leader")
    elif kind == "slow":
      num_joins = 0
    join = rng.randint(step + 1, last)
    for s, n, k in [(step, node, kind), *[(join, "", "join")] * num_joins]:
      line = len(faults) + 2  # Below the names of the columns.
      until = join if k == "slow" else None
      faults.append(Fault(s, n, kind=k, line=line, until=until))
  return tuple(faults)


def _parse(line: int, cells: Sequence[str]) -> Fault:
  if len(cells) != len(COLUMNS):
    raise ValueError(
        f"a fault has {len(COLUMNS)} values, {','.join(COLUMNS)}, got " f"{','.join(cells)!r}."
    )
  step, node, at, kind = cells
  if not re.fullmatch(r"\d+", step):
    raise ValueError(f"step must be a non-negative integer, got {step!r}.")
  point = int(at) if re.fullmatch(r"-?\d+", at) else at or None
  slow: dict[str, Any] = {}
  if kind.startswith("slow"):
    found = re.fullmatch(r"slow(?::(\d+\.?\d*)(?::(\d+))?)?", kind)
    if not found:
      raise ValueError(
          "slow is written slow, slow:FACTOR or slow:FACTOR:STEP, such as "
          f"slow:5:20, got {kind!r}."
      )
    kind, (factor, until) = "slow", found.groups()
    slow = {"factor": float(factor or Fault.factor), "until": until and int(until)}
  return Fault(int(step), node, point, kind, line, **slow)
