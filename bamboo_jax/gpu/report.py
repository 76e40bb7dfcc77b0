"""Memory and costs of the programs that the plan of a config needs, for one kind of GPU.

A kind of unit is compiled once, for a device or for the mesh of a node. With
`executor="spmd"` passes are segments of one program over the nodes of a pipeline.
Operations and bytes of a program are those of XLA's cost analysis, which counts a loop once
and calls of libraries (cuBLAS, cuDNN) not at all.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import math

import jax
import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import machines
from bamboo_jax.gpu import private
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.models import sharding
from bamboo_jax.plan import planner
from bamboo_jax.runtime import accelerator, places, settings
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.training.setup import build, show

_ADVICE = (
    "Take more config.pipeline.num_stages, a smaller "
    "config.pipeline.microbatch_size, config.pipeline.remat=inputs, or "
    "config.model.options.loss_chunk for large vocabularies."
)
_ALWAYS = ("forward", "backward", "update", "norms", "zeros", "cast")
_HEADER = ("owner", "program", "args", "out", "temp", "host MiB", "MFLOP", "MB accessed")


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program.

  Attributes:
    owner: Its unit, by the name of the first layer, or "pipeline".
    name: Name in `runtime.stage.programs`, or "segment".
  """

  owner: str
  name: str
  compiled: jax.stages.Compiled

  def num_bytes(self, *kinds: str) -> int:
    """Returns the bytes on one device of these kinds, as XLA assigned them.

    "argument", "output" and "temp" are on the device, "alias" are outputs in the memory of
    donated arguments, and "host_argument" and "host_output" are in host memory.
    """
    sizes = self.compiled.memory_analysis()
    return sum(getattr(sizes, f"{kind}_size_in_bytes") for kind in kinds)

  @property
  def device_bytes(self) -> int:
    """All memory on one device."""
    return self.num_bytes("argument", "output", "temp") - self.num_bytes("alias")


def compile_units(
    config: config_lib.Config,
    task: build.Task,
    plan: planner.Plan,
    gpu: machines.Machine,
    *,
    names: Sequence[str] | None = None,
) -> Iterator[tuple[spec_lib.StageSpec, Program]]:
  """Yields the programs of each kind of unit, once, with a unit of the kind.

  Args:
    task: Model and batch.
    plan: Its partition counts.
    names: Of programs; None: those that the config needs.
  """
  shape = (config.node.mesh.data, config.node.mesh.tensor)
  devices = private.make_devices(gpu, math.prod(shape))
  place: places.Place = devices[0]
  if len(devices) > 1:
    place = jax.sharding.Mesh(np.array(devices).reshape(shape), sharding.AXES)
  if names is None:
    names = [*_ALWAYS, *["evaluate"] * bool(config.evaluate.every_steps)]
    names += ["redundant"] * (config.redundancy.runs_ahead and len(devices) == 1)
  cache = programs_lib.ProgramCache()
  for unit in programs_lib.find_kinds(task.whole.cut(plan.partition.bounds)):
    programs = cache.get(unit, place)
    for name in names:
      if (compiled := programs.compile(name, place)) is not None:
        yield unit, Program(unit.names[0], name, compiled)


def compile_segments(
    config: config_lib.Config, task: build.Task, plan: planner.Plan, gpu: machines.Machine
) -> Iterator[Program]:
  """Yields the programs of the SPMD executor.

  They are that of a segment, and that which finishes a step after a death.
  """
  devices = private.make_devices(gpu, plan.num_stages)
  # `plan` may have the times of ticks already.
  rows, _ = build.plan_run(config, task, plan.profile)
  for name, program in build.make_segments(config, task, rows, devices).items():
    on_host = jax.tree.leaves((program.fetched, program.host))
    with private.host_arguments(len(on_host)):
      yield Program("pipeline", name, program.segment)


def find_flags(*, deterministic: bool) -> str:
  """Returns the flags of XLA that commands that train set on GPUs."""
  flags = accelerator.add_determinism("") if deterministic else ""
  return f"{flags} {settings.NO_FOLDING}".strip()


def make_report(config: config_lib.Config, gpu_name: str) -> str:
  """Returns a table of a config's programs; compiles for minutes.

  Call before JAX starts. Raises `base.InfeasibleError` if the plan or a program does not fit,
  `ValueError` if this Python cannot compile for GPUs, the GPU is not known, or
  the config does not fit together.
  """
  gpu = private.find(gpu_name)
  if reason := private.find_reason():
    raise ValueError(f"Cannot compile for {gpu.gpu}: {reason}.")
  private.prepare(find_flags(deterministic=config.node.deterministic))
  config = config.changed({"plan.memory_limit_gib": gpu.memory_bytes / 2**30})
  task = build.make_task(config, needs_data=False)
  plan = show.make_plan(config).plan
  if build.is_program(config):
    found = [*compile_segments(config, task, plan, gpu)]
  else:
    found = [program for _, program in compile_units(config, task, plan, gpu)]
  for program in found:
    if program.device_bytes > gpu.memory_bytes:
      raise base.InfeasibleError(
          f"The program {program.name} of {program.owner} needs "
          f"{program.device_bytes / 2**30:.1f} GiB, and programs on {gpu.gpu} have "
          f"{gpu.memory_bytes / 2**30:.1f} GiB; {program.num_bytes('temp') / 2**30:.1f} GiB of "
          f"it are neither arguments nor results. {_ADVICE}"
      )
  table = table_lib.align([_HEADER, *map(_render, found)], left=range(len(_HEADER)))
  return f"{gpu.gpu}: compiled programs\n{table}"


def _render(program: Program) -> tuple[str, ...]:
  """Returns the cells of a program in the table."""
  costs = private.find_costs(program.compiled)
  sizes = (("argument",), ("output",), ("temp",), ("host_argument", "host_output"))
  return (
      *(program.owner, program.name),
      *(f"{program.num_bytes(*kinds) / 2**20:.0f}" for kinds in sizes),
      *(f"{costs[name] / 1e6:.1f}" for name in ("flops", "bytes accessed")),
  )
