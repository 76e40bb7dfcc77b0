"""Reads the text of an optimised XLA program.

One line is one instruction: its name, shapes, operation, operands, and
attributes. Only what `findings` needs is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import math
import re

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_SHAPE = re.compile(r"(\w+)\[([\d,<= ]*)\](\{[^}]*\})?")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_NAME = re.compile(r"%([\w.\-]+)")
_NUM_BITS = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class HloShape:
  """An array: XLA's name of its type, its sides, and whether on the host."""

  dtype: str
  dims: tuple[int, ...]
  is_on_host: bool = False

  @property
  def num_bytes(self) -> int:
    """Bytes of the array; 0 for tokens."""
    bits = _NUM_BITS.search(self.dtype)
    size = 8 if self.dtype == "pred" else int(bits[0]) if bits else 0
    return math.prod(self.dims) * size // 8


@dataclasses.dataclass(frozen=True)
class HloInstruction:
  """One operation.

  Attributes:
    shapes: Arrays that it returns; tuples are flattened.
    operands: Names of instructions of the same computation.
    text: Attributes, not parsed.
  """

  name: str
  shapes: tuple[HloShape, ...]
  opcode: str
  operands: tuple[str, ...]
  text: str
  is_root: bool = False

  def called(self, attribute: str) -> str | None:
    """Returns the computation that an attribute names; None without."""
    found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.text)
    return found and found[1]

  def field(self, name: str) -> str | None:
    """Returns a quoted value of the backend's configuration."""
    found = re.search(rf'"{name}":\s*"([^"]*)"', self.text)
    return found and found[1]

  @property
  def trip_count(self) -> int | None:
    """Known number of runs of a loop; None if it depends on data."""
    found = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', self.text)
    return int(found[1]) if found else None

  @property
  def branches(self) -> tuple[str, ...]:
    """The computations of a conditional."""
    found = re.search(r"branch_computations=\{([^}]*)\}", self.text)
    if found:
      return tuple(_NAME.findall(found[1]))
    names = map(self.called, ("true_computation", "false_computation"))
    return tuple(name for name in names if name)


@dataclasses.dataclass(frozen=True)
class Computation:
  """Instructions in the order in which they are started."""

  name: str
  instructions: tuple[HloInstruction, ...]

  @functools.cached_property
  def by_name(self) -> Mapping[str, HloInstruction]:
    """The instructions by name."""
    return {i.name: i for i in self.instructions}

  @property
  def root(self) -> HloInstruction:
    """The instruction with its result."""
    return next(i for i in self.instructions if i.is_root)

  def shapes_of(self, operand: str) -> Sequence[HloShape]:
    """Returns the arrays of an operand."""
    return self.by_name[operand].shapes


@dataclasses.dataclass(frozen=True)
class Module:
  """A program: computations by name, one of which is its entry."""

  computations: Mapping[str, Computation]
  entry: Computation


def parse(text: str) -> Module:
  """Returns the program of `jax.stages.Compiled.as_text`.

  Raises `ValueError` if there is no entry computation in `text`.
  """
  lines: list[HloInstruction] = []
  computations, entry, name = {}, None, None
  for line in text.splitlines():
    if name is None:
      header = _HEADER.match(line)
      if header:
        name, lines = header[2], []
        entry = name if header[1] else entry
    elif line.startswith("}"):
      computations[name] = Computation(name, tuple(lines))
      name = None
    elif instruction := _parse_line(line):
      lines.append(instruction)
  if entry not in computations:
    raise ValueError("The text of the program has no line that starts ENTRY.")
  return Module(computations, computations[entry])


def _parse_line(line: str) -> HloInstruction | None:
  found = _LINE.match(line)
  if not found:
    return None
  rest = re.sub(r"/\*[^*]*\*/", "", line[found.end() :])
  if rest.startswith("("):
    end = _find_close(rest, 0)
  else:
    end = rest.index(" ") - 1
  opcode = _OPCODE.match(rest, end + 1)
  if not opcode:
    return None
  close = _find_close(rest, opcode.end() - 1)
  given = rest[opcode.end() : close]
  return HloInstruction(
      name=found[2],
      shapes=tuple(_parse_shapes(rest[: end + 1])),
      opcode=opcode[1],
      operands=tuple(_NAME.findall(given)),
      text=rest[close + 1 :],
      is_root=bool(found[1]),
  )


def _parse_shapes(text: str) -> Iterator[HloShape]:
  for dtype, dims, layout in _SHAPE.findall(text):
    sides = tuple(int(re.sub(r"\D", "", d)) for d in dims.split(",") if d)
    yield HloShape(dtype, sides, "S(5)" in layout)


def _find_close(text: str, start: int) -> int:
  """Returns the position of the parenthesis that closes the one at `start`."""
  depth = 0
  for i in range(start, len(text)):
    depth += (text[i] == "(") - (text[i] == ")")
    if not depth:
      return i
  raise ValueError(f"Unbalanced parentheses in {text[:80]!r}.")
