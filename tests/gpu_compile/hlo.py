"""Kernels, products, copies and waits in the text of an optimised XLA program on a GPU.

Instructions of the entry, of loops and of branches are started one by one; those of a
fusion are one kernel. Before each run of a loop whose trip count depends on data, outside of
a CUDA graph, the GPU's queue runs empty, because the host reads the condition.
"""

from collections.abc import Mapping
import dataclasses
import math
import re
from typing import NamedTuple

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_SHAPE = re.compile(r"(\w+)\[([\d,<= ]*)\](\{[^}]*\})?")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_NAME = re.compile(r"%([\w.\-]+)")

_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while conditional call"
    " after-all opt-barrier partition-id replica-id iota-free async-done"
    " add-dependency".split()
)
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_SCALARS_BYTES = 64  # A smaller constant may be copied, such as a counter.


class HloShape(NamedTuple):
  """An array; `num_bytes` is 0 for tokens."""

  dtype: str
  num_bytes: int
  is_on_host: bool


class HloInstruction(NamedTuple):
  """One operation; arrays of tuples are flattened, and attributes are not parsed."""

  name: str
  shapes: tuple[HloShape, ...]
  opcode: str
  operands: tuple[str, ...]
  attributes: str
  is_root: bool

  def called(self, *attributes):
    """Returns the computations that attributes name."""
    pattern = rf"\b(?:{'|'.join(attributes)})=(?:%?([\w.\-]+)|\{{([^}}]*)\}})"
    found = re.findall(pattern, self.attributes)
    return [name for one, many in found for name in ([one] if one else _NAME.findall(many))]

  @property
  def is_kernel(self):
    """Whether it is started on the device, and is no sum or transfer between devices."""
    base, _, end = self.opcode.rpartition("-")
    if end in ("start", "done", "update"):
      return base == "fusion" and end == "start"
    return self.opcode not in _FREE and base + end not in _COLLECTIVES


Computation = Mapping[str, HloInstruction]  # In the order in which they are started.


@dataclasses.dataclass(frozen=True)
class Program:
  """Computations by name, one of which is the entry."""

  computations: Mapping[str, Computation]
  entry: str

  def started(self, name=None):
    """Yields what is started, with where; all branches of a conditional count."""
    where = self.computations[name or self.entry]
    inner = ("body", "to_apply", "branch_computations", "true_computation", "false_computation")
    for what in where.values():
      yield where, what
      if what.opcode in ("while", "conditional", "call"):
        for called in what.called(*inner):
          yield from self.started(called)

  def inside(self, fusion):
    """Yields the instructions inside of a fusion."""
    for name in fusion.called("calls"):
      for what in self.computations[name].values():
        yield what
        yield from self.inside(what)

  @property
  def kernels(self):
    """What is started on the device."""
    return [what for _, what in self.started() if what.is_kernel]

  @property
  def num_slow_products(self):
    """Products and convolutions by XLA's own loops: by no library, and not by Triton."""
    is_slow = lambda what: any(
        i.opcode in ("dot", "convolution") for i in (what, *self.inside(what))
    ) and not _is_triton(what)
    return sum(map(is_slow, self.kernels))

  @property
  def smallest_tile(self):
    """Least side of the tiles of Triton's products; None without."""
    tiles = []
    for what in filter(_is_triton, self.kernels):
      tiles += re.findall(r'"(?:block_m|block_n)":"?(\d+)', what.attributes)
      for sizes in re.findall(r'"sizes":\[([^\]]*)\]', what.attributes):
        tiles += [n for n in re.findall(r"\d+", sizes) if int(n) > 1]
    return min(map(int, tiles), default=None)

  @property
  def num_unknown_loops(self):
    """Loops without a known trip count, in one run of the loop around them."""
    loops = [what for _, what in self.started() if what.opcode == "while"]
    return sum('"known_trip_count"' not in what.attributes for what in loops)

  def count_large(self, num_bytes):
    """Returns how many kernels write float32 arrays of at least `num_bytes`."""
    is_large = lambda shape: shape.dtype == "f32" and shape.num_bytes >= num_bytes
    return sum(any(map(is_large, what.shapes)) for what in self.kernels)

  def copies(self):
    """Yields what copies between host and device, with bytes, and what is wrong.

    The third value is whether a kernel runs beside it. Wrong is a copy that waits, is of a
    constant, or is from host to host.
    """
    for where, what in self.started():
      if what.opcode in _FREE or what.opcode.endswith("-done"):
        continue
      given = [shape for name in what.operands for shape in where[name].shapes]
      every = [*given, *what.shapes]
      if not any(shape.is_on_host for shape in every):
        continue
      # The largest array of the device: a slice, or all of a copy.
      sizes = [s.num_bytes for s in every if not s.is_on_host and s.num_bytes > 8]
      num_bytes = max(sizes or [shape.num_bytes for shape in what.shapes])
      is_started, faults = what.opcode.endswith("-start"), []
      if not is_started:
        faults.append(f"{what.name} waits for {num_bytes} bytes")
      if what.opcode in ("copy", "copy-start"):
        if all(shape.is_on_host for shape in given):
          faults.append(f"{what.name} is from host to host")
        if num_bytes > _SCALARS_BYTES and self._is_constant(where[what.operands[0]]):
          faults.append(f"{what.name} copies a constant of {num_bytes} bytes")
      yield what, num_bytes, is_started and _runs_beside(where, what), faults

  def _is_constant(self, made):
    for name in made.called("calls"):
      made = next(i for i in self.computations[name].values() if i.is_root)
    return made.opcode in ("broadcast", "constant")


def _is_triton(what):
  is_gemm = re.search(r'"kind":\s*"[^"]*gemm', what.attributes)
  return what.opcode == "fusion" and is_gemm is not None


def _runs_beside(where, start):
  """Returns whether a kernel is started between a start and its done."""
  order = [*where.values()]
  for what in order[order.index(start) + 1 :]:
    if start.name in what.operands:
      return False
    is_kernel = what.is_kernel and what.opcode != "fusion-start"
    if is_kernel or what.opcode in ("while", "conditional", "call"):
      return True
  return False


def parse(text):
  """Returns the program of `jax.stages.Compiled.as_text`."""
  computations = {}
  entry = name = None
  for line in text.splitlines():
    if name is None:
      if header := _HEADER.match(line):
        name = header[2]
        computations[name] = {}
        entry = name if header[1] else entry
    elif line.startswith("}"):
      name = None
    elif what := _parse_line(line):
      computations[name][what.name] = what
  return Program(computations, entry)


def _parse_line(line):
  if not (found := _LINE.match(line)):
    return None
  rest = re.sub(r"/\*[^*]*\*/", "", line[found.end() :])
  end = _find_close(rest, 0) if rest.startswith("(") else rest.index(" ") - 1
  if not (opcode := _OPCODE.match(rest, end + 1)):
    return None
  close = _find_close(rest, opcode.end() - 1)
  return HloInstruction(
      found[2],
      tuple(_parse_shapes(rest[: end + 1])),
      opcode[1],
      operands=tuple(_NAME.findall(rest[opcode.end() : close])),
      attributes=rest[close + 1 :],
      is_root=bool(found[1]),
  )


def _parse_shapes(text):
  for dtype, dims, layout in _SHAPE.findall(text):
    bits = re.search(r"\d+", dtype)
    size = 8 if dtype == "pred" else int(bits[0]) if bits else 0
    sides = [int(re.sub(r"\D", "", d)) for d in dims.split(",") if d]
    yield HloShape(dtype, math.prod(sides) * size // 8, "S(5)" in layout)


def _find_close(text, start):
  """Returns the position of the parenthesis that closes the one at `start`."""
  depth = 0
  for i in range(start, len(text)):
    depth += (text[i] == "(") - (text[i] == ")")
    if not depth:
      return i
  raise ValueError(f"Unbalanced parentheses in {text[:80]!r}.")
