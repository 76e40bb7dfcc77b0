"""Kernels, products, copies and waits of a compiled program on a GPU.

Instructions of the entry, of loops and of branches are started one by one;
those of a fusion are one kernel. A loop whose trip count depends on data counts
once: the programs of this project use it as a branch. Outside of a CUDA graph,
which the text does not show, the GPU's queue runs empty before each run of such
a loop, because the host reads the condition.

The roofline time is the sum over kernels of the time to move their operands
and results or of their operations, whichever is longer, and a launch.
"""

import collections
from collections.abc import Iterator, Mapping
import dataclasses
import math
import re

from bamboo_jax.accounting import machines
from bamboo_jax.gpu import hlo

_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while conditional call"
    " after-all opt-barrier partition-id replica-id iota-free async-done"
    " add-dependency".split()
)
_COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
_LAUNCH_SECS = 2e-6  # Between two kernels of a queue, assumed.
# Share of the peak that kernels reach, assumed: 500 of 989 TFLOP/s of products
# and 350 of attention, 2.9 of 3.35 TB/s, on an H100.
_PRODUCT_SHARE, _ATTENTION_SHARE, _MEMORY_SHARE = 0.5, 0.35, 0.87
_LINK_SHARE = 0.8
_SCALARS_BYTES = 64  # A smaller constant may be copied, such as a counter.
_LIBRARIES = {
    "__cublas": "cuBLAS",
    "__cublas$lt": "cuBLASLt",
    "__cudnn$conv": "cuDNN convolution",
    "__cudnn$fmha": "cuDNN attention",
}


@dataclasses.dataclass(frozen=True)
class Findings:
  """Counts and roofline time of one run of a program.

  Attributes:
    kernels: Number of kernels and calls of libraries.
    products: Matrix products and convolutions, by library.
    attention: Calls of fused attention, forward or backward.
    smallest_tile: Least side of the tiles of Triton's products; None without.
    collectives: Number by kind.
    lone_collectives: Those with no kernel between start and done.
    host_bytes: Bytes copied to or from host memory.
    hidden_host_bytes: Those beside which kernels run.
    host_faults: One line for each copy that waits, is of zeros, or is from
      host to host.
    unknown_loops: Loops without a known trip count, in one run of the loop
      around them.
    flops: Operations of products; attention without regard to masks.
    secs: Roofline time.
  """

  kernels: int
  products: Mapping[str, int]
  attention: int
  smallest_tile: int | None
  collectives: Mapping[str, int]
  lone_collectives: int
  host_bytes: int
  hidden_host_bytes: int
  host_faults: tuple[str, ...]
  unknown_loops: int
  flops: float
  secs: float


@dataclasses.dataclass(frozen=True)
class _Step:
  """An instruction that is started, where, and how often in one run."""

  where: hlo.Computation
  what: hlo.HloInstruction
  times: int


def find(module: hlo.Module, gpu: machines.Machine) -> Findings:
  """Counts kernels, copies and waits of a program; times them on `gpu`."""
  steps = list(_walk(module, module.entry, 1))
  kernels = [step for step in steps if _is_kernel(step.what)]
  products: collections.Counter[str] = collections.Counter()
  tiles, attention = [], 0
  flops = busy = 0.0
  for step in kernels:
    library = _library(module, step.what)
    if library == "cuDNN attention":
      attention += step.times
    elif library:
      products[library] += step.times
    if library == "Triton":
      tiles += _tiles(step.what)
    operations = _count_flops(module, step)
    flops += step.times * operations
    busy += step.times * _kernel_secs(module, step, operations, library, gpu)
  collectives, lone, link_secs = _find_collectives(steps, gpu)
  moved, hidden, faults = _find_copies(module, steps)
  host_rate = gpu.pcie_bytes_per_sec * _LINK_SHARE
  secs = max(busy, hidden / host_rate) + (moved - hidden) / host_rate
  return Findings(
      kernels=sum(step.times for step in kernels),
      products=dict(products),
      attention=attention,
      smallest_tile=min(tiles, default=None),
      collectives=collectives,
      lone_collectives=lone,
      host_bytes=moved,
      hidden_host_bytes=hidden,
      host_faults=tuple(faults),
      unknown_loops=sum(
          step.what.opcode == "while" and step.what.trip_count is None for step in steps
      ),
      flops=flops,
      secs=secs + link_secs,
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


def _is_kernel(what: hlo.HloInstruction) -> bool:
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


def _dots(
    module: hlo.Module, what: hlo.HloInstruction
) -> Iterator[tuple[hlo.Computation, hlo.HloInstruction]]:
  """Yields the products inside of a fusion."""
  inner = module.computations[what.called("calls") or ""]
  for i in inner.instructions:
    if i.opcode in ("dot", "convolution"):
      yield inner, i
    elif i.opcode == "fusion":
      yield from _dots(module, i)


def _count_flops(module: hlo.Module, step: _Step) -> float:
  what, where = step.what, step.where
  if what.opcode == "fusion":
    return sum(_product_flops(w, i) for w, i in _dots(module, what))
  if what.opcode in ("dot", "convolution", "custom-call"):
    return _product_flops(where, what)
  return 0.0


def _product_flops(where: hlo.Computation, what: hlo.HloInstruction) -> float:
  """Returns 2 for each multiplication with its addition."""
  target = re.search(r'custom_call_target="([^"]+)"', what.text)
  target = target[1] if target else ""
  if "fmha" in target:
    scores = math.prod(_score_dims(what))
    width = where.shapes_of(what.operands[0])[0].dims[-1]
    return (5 if "Backward" in target else 2) * 2.0 * scores * width
  if "$conv" in target or what.opcode == "convolution":
    return _convolution_flops(where, what, target)
  if what.opcode == "dot" or target.startswith("__cublas"):
    left = where.shapes_of(what.operands[0])[0]
    summed = what.numbers("lhs_contracting_dimensions")
    summed = summed or what.numbers("lhs_contracting_dims")
    sides = math.prod(left.dims[i] for i in summed)
    return 2.0 * math.prod(what.shapes[0].dims) * sides
  return 0.0


def _score_dims(what: hlo.HloInstruction) -> tuple[int, ...]:
  found = re.search(r'"intermediate_tensor_shape":\s*\{.*?"dimensions":\s*\[([^\]]*)\]', what.text)
  return tuple(map(int, re.findall(r"\d+", found[1]))) if found else (0,)


def _convolution_flops(where: hlo.Computation, what: hlo.HloInstruction, target: str) -> float:
  """Returns 2 * outputs * kernel / output features, of any of three kinds."""
  labels = re.search(r"dim_labels=\w+_(\w+)->\w+", what.text)
  if not labels:
    return 0.0
  left, right = (where.shapes_of(name)[0] for name in what.operands[:2])
  result = what.shapes[0]
  if "BackwardInput" in target:
    outputs, kernel = left, right
  elif "BackwardFilter" in target:
    outputs, kernel = right, result
  else:
    outputs, kernel = result, right
  features = kernel.dims[labels[1].index("o")]
  return 2.0 * math.prod(outputs.dims) * math.prod(kernel.dims) / features


def _kernel_secs(
    module: hlo.Module, step: _Step, flops: float, library: str | None, gpu: machines.Machine
) -> float:
  dtypes = {s.dtype for n in step.what.operands for s in step.where.shapes_of(n)}
  peak = gpu.flops_per_sec
  if not dtypes & {"bf16", "f16"}:
    peak /= 2  # Of float32, which XLA rounds to 19 bits.
  share = _PRODUCT_SHARE
  if library == "cuDNN attention":
    share = _ATTENTION_SHARE
    if "CAUSAL" in step.what.text:
      flops /= 2
  num_bytes = _moved_bytes(module, step)
  rate = gpu.memory_bytes_per_sec * _MEMORY_SHARE
  return max(num_bytes / rate, flops / (peak * share)) + _LAUNCH_SECS


def _moved_bytes(module: hlo.Module, step: _Step) -> int:
  """Returns the bytes on the device that a kernel reads and writes."""
  what = step.what
  read = lambda shapes: sum(s.num_bytes for s in shapes if not s.is_on_host)
  sizes = {n: read(step.where.shapes_of(n)) for n in what.operands}
  written = read(what.shapes)
  if "__cublas" in what.text:  # The last result is scratch memory.
    written = read(what.shapes[:1])
  if what.opcode.startswith("fusion"):
    if what.opcode == "fusion-start":
      return 0  # Counted as a copy.
    inner = module.computations[what.called("calls") or ""]
    for i, name in enumerate(what.operands):
      sizes[name] = min(sizes[name], _read_bytes(inner, i, sizes[name]))
    if inner.root.opcode == "dynamic-update-slice":
      written = read(inner.shapes_of(inner.root.operands[1]))
  elif what.opcode in ("dynamic-slice", "gather", "slice"):
    sizes = {what.operands[0]: written}
  elif what.opcode == "dynamic-update-slice":
    written = sizes[what.operands[1]]
    sizes = {what.operands[1]: written}
  return int(sum(sizes.values()) + written)


def _read_bytes(inner: hlo.Computation, index: int, whole: int) -> int:
  """Returns how much a fusion reads of an argument, which it may cut."""
  names = [i.name for i in inner.instructions if i.index == index]
  num_bytes = 0
  while names:
    name = names.pop()
    for user in inner.users(name):
      if user.opcode == "bitcast":
        names.append(user.name)
      elif user.opcode in ("dynamic-slice", "slice", "gather"):
        num_bytes += sum(s.num_bytes for s in user.shapes)
      elif user.opcode != "dynamic-update-slice" or user.operands[0] != name:
        return whole
  return num_bytes


def _find_collectives(
    steps: list[_Step], gpu: machines.Machine
) -> tuple[dict[str, int], int, float]:
  """Returns the number of each kind, of lone ones, and their seconds."""
  counts: collections.Counter[str] = collections.Counter()
  lone, secs = 0, 0.0
  for step in steps:
    kind = step.what.opcode.removesuffix("-start")
    if step.what.opcode == "async-start":
      names = [k for k in _COLLECTIVES if k in step.what.text]
      kind = names[0] if names else kind
    if kind in _COLLECTIVES:
      counts[kind] += step.times
      if not _runs_beside(step):
        lone += step.times
        num_bytes = max(s.num_bytes for s in step.what.shapes)
        secs += step.times * num_bytes / (gpu.inner_bytes_per_sec * _LINK_SHARE)
  return dict(counts), lone, secs


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
    if i.opcode != "fusion-start" and _is_kernel(i):
      return True
    if i.opcode in ("while", "conditional", "call"):
      return True
  return False
