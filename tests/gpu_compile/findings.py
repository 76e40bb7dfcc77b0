"""Kernels, products, copies and waits of a compiled program on a GPU.

Instructions of the entry, of loops and of branches are started one by one;
those of a fusion are one kernel. A loop whose trip count depends on data counts
once: the programs of this project use it as a branch. Outside of a CUDA graph,
which the text does not show, the GPU's queue runs empty before each run of such
a loop, because the host reads the condition.
"""

import collections
from collections.abc import Iterator, Mapping
import dataclasses
import re

from tests.gpu_compile import hlo

_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while conditional call"
    " after-all opt-barrier partition-id replica-id iota-free async-done"
    " add-dependency".split()
)
_COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
_SCALARS_BYTES = 64  # A smaller constant may be copied, such as a counter.
_LIBRARIES = {
    "__cublas": "cuBLAS",
    "__cublas$lt": "cuBLASLt",
    "__cudnn$conv": "cuDNN convolution",
    "__cudnn$fmha": "cuDNN attention",
}


@dataclasses.dataclass(frozen=True)
class Findings:
  """Counts of one run of a program.

  Attributes:
    kernels: Number of kernels and calls of libraries.
    products: Matrix products, convolutions and fused attention, by library.
    smallest_tile: Least side of the tiles of Triton's products; None without.
    host_bytes: Bytes copied to or from host memory.
    hidden_host_bytes: Those beside which kernels run.
    host_faults: One line for each copy that waits, is of zeros, or is from
      host to host.
    unknown_loops: Loops without a known trip count, in one run of the loop
      around them.
  """

  kernels: int
  products: Mapping[str, int]
  smallest_tile: int | None
  host_bytes: int
  hidden_host_bytes: int
  host_faults: tuple[str, ...]
  unknown_loops: int


@dataclasses.dataclass(frozen=True)
class _Step:
  """An instruction that is started, where, and how often in one run."""

  where: hlo.Computation
  what: hlo.HloInstruction
  times: int


def find(module: hlo.Module) -> Findings:
  """Counts kernels, copies and waits of a program."""
  steps = list(_walk(module, module.entry, 1))
  kernels = [step for step in steps if is_kernel(step.what)]
  products: collections.Counter[str] = collections.Counter()
  tiles = []
  for step in kernels:
    if library := _library(module, step.what):
      products[library] += step.times
    if library == "Triton":
      tiles += _tiles(step.what)
  moved, hidden, faults = _find_copies(module, steps)
  return Findings(
      kernels=sum(step.times for step in kernels),
      products=dict(products),
      smallest_tile=min(tiles, default=None),
      host_bytes=moved,
      hidden_host_bytes=hidden,
      host_faults=tuple(faults),
      unknown_loops=sum(
          step.what.opcode == "while" and step.what.trip_count is None for step in steps
      ),
  )


def count_large(module: hlo.Module, num_bytes: int) -> int:
  """Returns how many kernels write float32 arrays of at least `num_bytes`."""
  return sum(
      any(s.dtype == "f32" and s.num_bytes >= num_bytes for s in step.what.shapes)
      for step in _walk(module, module.entry, 1)
      if is_kernel(step.what)
  )


def _walk(module: hlo.Module, where: hlo.Computation, times: int) -> Iterator[_Step]:
  """Yields what is started; all branches of a conditional count."""
  for what in where.instructions:
    yield _Step(where, what, times)
    inner, count = (), times
    if what.opcode == "while":
      inner, count = (what.called("body"),), times * (what.trip_count or 1)
    elif what.opcode == "conditional":
      inner = what.branches
    elif what.opcode == "call":
      inner = (what.called("to_apply"),)
    for name in inner:
      yield from _walk(module, module.computations[name or ""], count)


def is_kernel(what: hlo.HloInstruction) -> bool:
  base, _, end = what.opcode.rpartition("-")
  if end in ("start", "done", "update"):
    return base == "fusion" and end == "start"
  return what.opcode not in _FREE and base + end not in _COLLECTIVES


def _library(module: hlo.Module, what: hlo.HloInstruction) -> str | None:
  """Returns the library of a kernel's product; None without a product."""
  if target := re.search(r'custom_call_target="([^"]+)"', what.text):
    names = [n for n in _LIBRARIES if target[1].startswith(n)]
    return _LIBRARIES[max(names, key=len)] if names else None
  if what.opcode in ("dot", "convolution"):
    return "XLA"
  if what.opcode == "fusion" and "gemm" in (what.field("kind") or ""):
    return "Triton"
  if what.opcode == "fusion" and any(_dots(module, what)):
    return "XLA"
  return None


def _tiles(what: hlo.HloInstruction) -> list[int]:
  """Returns the sides of the tiles of a product of Triton."""
  numbers = re.findall(r'"(?:block_m|block_n)":"?(\d+)', what.text)
  numbers += [
      n
      for sizes in re.findall(r'"sizes":\[([^\]]*)\]', what.text)
      for n in re.findall(r"\d+", sizes)
      if int(n) > 1
  ]
  return list(map(int, numbers))


def _dots(module: hlo.Module, what: hlo.HloInstruction) -> Iterator[hlo.HloInstruction]:
  """Yields the products inside of a fusion."""
  for i in module.computations[what.called("calls") or ""].instructions:
    if i.opcode in ("dot", "convolution"):
      yield i
    elif i.opcode == "fusion":
      yield from _dots(module, i)


def _find_copies(module: hlo.Module, steps: list[_Step]) -> tuple[int, int, list[str]]:
  """Returns bytes between host and device, those hidden, and faults."""
  moved = hidden = 0
  faults = []
  for step in steps:
    what = step.what
    if what.opcode in _FREE or what.opcode.endswith("-done"):
      continue
    sides = [s for n in what.operands for s in step.where.shapes_of(n)]
    if not any(s.is_on_host for s in (*sides, *what.shapes)):
      continue
    num_bytes = _copied_bytes(what, sides)
    moved += step.times * num_bytes
    if not what.opcode.endswith("-start"):
      faults.append(f"{what.name} waits for {num_bytes} bytes")
    elif _runs_beside(step):
      hidden += step.times * num_bytes
    if what.opcode in ("copy", "copy-start"):
      if all(s.is_on_host for s in sides):
        faults.append(f"{what.name} is from host to host")
      is_large = num_bytes > _SCALARS_BYTES
      if is_large and _is_constant(module, step, what.operands[0]):
        faults.append(f"{what.name} copies a constant of {num_bytes} bytes")
  return moved, hidden, faults


def _copied_bytes(what: hlo.HloInstruction, sides: list[hlo.HloShape]) -> int:
  """Returns the largest array of the device: a slice, or all of a copy."""
  on_device = [s.num_bytes for s in (*sides, *what.shapes) if not s.is_on_host]
  on_device = [n for n in on_device if n > 8]
  return max(on_device, default=max(s.num_bytes for s in what.shapes))


def _is_constant(module: hlo.Module, step: _Step, name: str) -> bool:
  made = step.where.by_name[name]
  if made.opcode == "fusion":
    made = module.computations[made.called("calls") or ""].root
  return made.opcode in ("broadcast", "constant")


def _runs_beside(step: _Step) -> bool:
  """Returns whether a kernel is started between a start and its done."""
  if not step.what.opcode.endswith("-start"):
    return False
  order = step.where.instructions
  first = order.index(step.what) + 1
  for i in order[first:]:
    if step.what.name in i.operands:
      return False
    if i.opcode != "fusion-start" and is_kernel(i):
      return True
    if i.opcode in ("while", "conditional", "call"):
      return True
  return False
