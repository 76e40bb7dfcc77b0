"""Compiled programs beside the plan: memory of each stage, tokens per second.

The time of a step is that of the plan whose costs are the roofline times of the
programs; the link between nodes is assumed. MFU counts products as in appendix
B of the PaLM paper: three times those of the forward passes, attention in full,
recomputation not at all.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import machines
from bamboo_jax.gpu import private, programs as programs_lib, targets
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.plan import cost_model, planner
from bamboo_jax.runtime import accelerator, settings
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.train.setup import build, executors, show

_LINK_BYTES_PER_SEC = 1.25e10  # 100 Gbit/s, where the config has no instance.
_ADVICE = (
    "Take more config.pipeline.num_stages, a smaller "
    "config.pipeline.microbatch_size, config.pipeline.remat=inputs, or "
    "config.model.options.loss_chunk for large vocabularies."
)
_MIB = 2**20
_PASSES = ("forward", "backward", "redundant")

Programs = Mapping[str, programs_lib.Program]
_HEADER = (
    *("unit", "program", "args", "out", "temp", "host MiB", "kernels"),
    *("products", "attention", "collectives", "hidden", "waits", "ms"),
)


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


@dataclasses.dataclass(frozen=True)
class PredictedSpeed:
  """Predicted time of a step.

  Attributes:
    step_secs: All phases.
    samples: Samples of a step.
    tokens: Tokens of a step; None if samples have no length.
    mfu: Share of the peak of all GPUs.
  """

  step_secs: float
  samples: int
  tokens: int | None
  mfu: float


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


def price(
    profile: cost_model.Profile,
    units: Sequence[spec_lib.StageSpec],
    by_kind: Mapping[object, Programs],
    *,
    link_bytes_per_sec: float,
    host_bytes_per_sec: float,
) -> cost_model.Profile:
  """Returns `profile` with the roofline times of compiled programs.

  The time of a unit is divided among its layers as it was before. A redundant
  pass costs a forward pass, and the copies of residuals that the plan chooses.
  """
  layers = list(profile.layers)
  for unit in units:
    own, found = layers[unit.first : unit.last], by_kind[unit.kind]
    for field, name in (
        ("forward_ms", "forward"),
        ("backward_ms", "backward"),
        ("update_ms", "update"),
        ("norm_ms", "norms"),
    ):
      if name not in found:
        continue
      ms = 1e3 * found[name].findings.secs
      before = [getattr(layer, field) or 0.0 for layer in own]
      total = sum(before)
      times: list[dict[str, Any]] = [
          {field: ms * (b / total if total else 1 / len(own))} for b in before
      ]
      own = [dataclasses.replace(layer, **change) for layer, change in zip(own, times, strict=True)]
    layers[unit.first : unit.last] = own
  rate = link_bytes_per_sec / 1e3
  return dataclasses.replace(
      profile,
      layers=tuple(layers),
      link_bytes_per_ms=rate,
      reduce_bytes_per_ms=rate,
      link_latency_ms=0.05,
      reduce_latency_ms=0.05,
      measured=False,
      host_bytes_per_ms=host_bytes_per_sec / 1e3,
  )


def find_speed(
    config: config_lib.Config,
    whole: spec_lib.StageSpec,
    plan: planner.Plan,
    by_kind: Mapping[object, Programs],
    gpu: machines.Machine,
) -> PredictedSpeed:
  """Returns the speed of `plan` with the roofline times of its programs."""
  units = [u for s in whole.cut(plan.partition.bounds) for u in s.units]
  link_rate = _LINK_BYTES_PER_SEC
  if (instance := config.cost.instance) is not None:
    gbit_per_sec = machines.find(instance)["network_gbit_per_sec"]
    link_rate = 1e9 / 8 * float(gbit_per_sec)
  profile = price(
      *(plan.profile, units, by_kind),
      link_bytes_per_sec=link_rate,
      host_bytes_per_sec=gpu.pcie_bytes_per_sec,
  )
  priced = build.make_plan(config, profile, num_stages=plan.num_stages)
  rows = build.make_rows(config, priced)
  spans = [priced.timeline.span_ms]
  spans.append(rows.whole(0, rows.roles(0)).timeline.span_ms)
  times = priced.step_time
  step_secs = (times.total_ms - times.compute_ms + max(spans)) / 1e3
  pipeline = config.pipeline
  samples = pipeline.num_microbatches * pipeline.microbatch_size
  flops = sum(by_kind[u.kind]["forward"].findings.flops for u in units)
  flops *= 3 * pipeline.num_microbatches / plan.num_stages
  length = whole.model.fingerprint.get("sequence_length")
  samples *= plan.num_pipelines
  return PredictedSpeed(
      step_secs=step_secs,
      samples=samples,
      tokens=length and samples * length,
      mfu=flops / step_secs / gpu.flops_per_sec,
  )


def render_program(program: programs_lib.Program) -> tuple[str, ...]:
  """Returns the cells of a program in the table of programs."""
  memory, found = program.memory, program.findings
  counts = lambda d: " ".join(f"{n} {k}" for k, n in sorted(d.items())) or "-"
  hidden = f"{found.hidden_host_bytes / max(1, found.host_bytes):.0%}"
  lone = f" ({found.lone_collectives} alone)" * bool(found.lone_collectives)
  return (
      program.owner,
      program.name,
      *(f"{n / _MIB:.0f}" for n in (memory.arguments, memory.outputs)),
      *(f"{n / _MIB:.0f}" for n in (memory.temp, memory.host)),
      str(found.kernels),
      counts(found.products),
      str(found.attention or "-"),
      counts(found.collectives) + lone,
      hidden if found.host_bytes else "-",
      str(found.unknown_loops or "-"),
      f"{1e3 * found.secs:.3f}",
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
  text = _render(gpu, "kind of unit", found, memory)
  speed = find_speed(config, task.whole, plan, by_kind, gpu)
  return f"{text}\n{render_speed(speed)}"


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
  faults = [f"{p.owner} {p.name}: {f}" for p in found for f in p.findings.host_faults]
  lines += ["copies that should not be:", *faults] if faults else []
  return "\n".join(lines)


def render_speed(speed: PredictedSpeed) -> str:
  """Returns the line of a speed."""
  what, count = "samples", speed.samples
  if speed.tokens is not None:
    what, count = "tokens", speed.tokens
  return (
      f"predicted, not measured: {1e3 * speed.step_secs:.1f} ms per step, "
      f"{count / speed.step_secs:,.0f} {what}/s, MFU {100 * speed.mfu:.1f} %"
  )
