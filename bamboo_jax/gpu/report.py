"""Memory and costs of compiled programs, and of each stage beside the plan.

Operations and bytes of a program are those of XLA's cost analysis, which counts
a loop once and calls of libraries (cuBLAS, cuDNN) not at all.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import machines
from bamboo_jax.gpu import private, programs as programs_lib, targets
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.plan import planner
from bamboo_jax.runtime import accelerator, settings
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.training.setup import build, executors, show

_ADVICE = (
    "Take more config.pipeline.num_stages, a smaller "
    "config.pipeline.microbatch_size, config.pipeline.remat=inputs, or "
    "config.model.options.loss_chunk for large vocabularies."
)
_MIB = 2**20
_PASSES = ("forward", "backward", "redundant")

Programs = Mapping[str, programs_lib.Program]
_HEADER = ("unit", "program", "args", "out", "temp", "host MiB", "MFLOP", "MB accessed")


@dataclasses.dataclass(frozen=True)
class StageMemory:
  """Peak of a stage while rows run, in bytes on each device of its node.

  Attributes:
    planned: By the planner.
    compiled: The same with the sizes of compiled programs.
    largest: The program with the most temporary memory.
  """

  planned: int
  compiled: int
  largest: programs_lib.Program


def find_memory(
    stages: Sequence[spec_lib.StageSpec],
    plan: planner.Plan,
    by_kind: Mapping[object, Programs],
    num_devices: int,
) -> list[StageMemory]:
  """Returns the memory of each stage of `plan`."""
  found = []
  for number, stage in enumerate(stages):
    planned = plan.memory[number]
    layers = plan.profile.layers[stage.first : stage.last]
    in_flight = planned.residual_bytes / sum(l.residual_bytes for l in layers)
    own = [by_kind[unit.kind] for unit in stage.units]
    run = list(own)
    if planned.replica_bytes:  # It may have to run passes of the next stage.
      after = stages[(number + 1) % len(stages)]
      run += [by_kind[unit.kind] for unit in after.units]
    passes = [p for one in run for n, p in one.items() if n in _PASSES]
    largest = max(passes, key=lambda p: p.memory.temp)
    state = sum(one["update"].memory.arguments for one in own)
    sums = sum(one["zeros"].memory.outputs for one in own)
    copies = sum(one["cast"].memory.outputs for one in own if "cast" in one)
    kept = sum(one["forward"].memory.outputs for one in own)
    others = planned.replica_bytes + planned.buffer_bytes
    others += planned.transfer_bytes
    others += planned.copy_bytes - sum(layer.copy_bytes for layer in layers)
    others += sum(layer.frozen_bytes for layer in layers)  # Not of an update.
    trained = sum(layer.gradient_bytes for layer in layers)
    count = planned.accumulator_bytes / max(1, trained)
    compiled = state + (count - 1) * sums + copies + in_flight * kept
    compiled += largest.memory.temp + others / num_devices
    found.append(StageMemory(planned.phases["compute"] // num_devices, int(compiled), largest))
  return found


def find_segment_memory(
    plan: planner.Plan, programs: Sequence[programs_lib.Program]
) -> list[StageMemory]:
  """Returns the memory of each stage if passes run as segments (SPMD).

  During a segment, whose weights are copies, a node also holds its state and
  that of its replica.
  """
  largest = max(programs, key=lambda program: program.memory.total)
  return [
      StageMemory(m.phases["compute"], m.resident_bytes + largest.memory.total, largest)
      for m in plan.memory
  ]


def check_memory(memory: Sequence[StageMemory], gpu: machines.Machine) -> None:
  """Raises `base.InfeasibleError` if a stage does not fit on a GPU."""
  for number, one in enumerate(memory):
    if one.compiled > gpu.memory_bytes:
      program = one.largest
      raise base.InfeasibleError(
          f"Stage {number} needs {one.compiled / 2**30:.1f} GiB, and programs "
          f"on {gpu.gpu} have {gpu.memory_bytes / 2**30:.1f} GiB; its "
          f"largest program, {program.name} of {program.owner}, needs "
          f"{program.memory.temp / 2**30:.1f} GiB besides its arguments. "
          f"{_ADVICE}"
      )


def render_program(program: programs_lib.Program) -> tuple[str, ...]:
  """Returns the cells of a program in the table of programs."""
  memory, costs = program.memory, private.find_costs(program.compiled)
  sizes = (memory.arguments, memory.outputs, memory.temp, memory.host)
  return (
      program.owner,
      program.name,
      *(f"{n / _MIB:.0f}" for n in sizes),
      *(f"{costs[name] / 1e6:.1f}" for name in ("flops", "bytes accessed")),
  )


def find_flags(*, deterministic: bool) -> str:
  """Returns the flags of XLA that commands that train set on GPUs."""
  flags = accelerator.add_determinism("") if deterministic else ""
  return f"{flags} {settings.NO_FOLDING}".strip()


def make_report(config: config_lib.Config, gpu_name: str) -> str:
  """Returns the report on a config's programs; compiles for minutes.

  Call before JAX starts. Raises `base.InfeasibleError` if a stage does not fit,
  `ValueError` if this Python cannot compile for GPUs, the GPU is not known, or
  the config does not fit together.
  """
  gpu = targets.find(gpu_name)
  if reason := private.find_reason():
    raise ValueError(f"Cannot compile for {gpu.gpu}: {reason}.")
  private.prepare(find_flags(deterministic=config.node.deterministic))
  limit = {"plan.memory_limit_gib": gpu.memory_bytes / 2**30}
  config = config.changed(limit)
  task = build.make_task(config, needs_data=False)
  plan = show.make_plan(config).plan
  if executors.is_program(config):
    found = list(programs_lib.compile_segments(config, task, plan, gpu))
    return _render(gpu, "pipeline", found, find_segment_memory(plan, found))
  by_kind: dict[object, dict[str, programs_lib.Program]] = {}
  for unit, program in programs_lib.compile_units(config, task, plan, gpu):
    by_kind.setdefault(unit.kind, {})[program.name] = program
  stages = task.whole.cut(plan.partition.bounds)
  num_devices = config.node.mesh.data * config.node.mesh.tensor
  memory = find_memory(stages, plan, by_kind, num_devices)
  found = [program for one in by_kind.values() for program in one.values()]
  return _render(gpu, "kind of unit", found, memory)


def _render(
    gpu: machines.Machine,
    what: str,
    found: Sequence[programs_lib.Program],
    memory: Sequence[StageMemory],
) -> str:
  """Returns programs and memory; raises `base.InfeasibleError`."""
  check_memory(memory, gpu)
  rows = [_HEADER, *map(render_program, found)]
  table = table_lib.align(rows, left=range(len(_HEADER)))
  lines = [f"{gpu.gpu}: programs of each {what}", table]
  lines += [
      f"stage {i}: {m.compiled / 2**30:.2f} GiB on each device by the compiled "
      f"programs, {m.planned / 2**30:.2f} GiB by the planner, limit "
      f"{gpu.memory_bytes / 2**30:.2f} GiB"
      for i, m in enumerate(memory)
  ]
  return "\n".join(lines)
