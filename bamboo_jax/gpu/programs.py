"""Compiles the programs that the plan of a config needs, for one kind of GPU.

A kind of unit is compiled once, for a device or for the mesh of a node. With
`executor="spmd"` passes are segments of one program over the nodes of a
pipeline.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import math

import jax
import numpy as np

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import machines
from bamboo_jax.gpu import private, targets
from bamboo_jax.models import sharding
from bamboo_jax.plan import planner
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.training.setup import build, executors

_ALWAYS = ("forward", "backward", "update", "norms", "zeros", "cast")
_AHEAD = ("bubble", "budget", "eager")  # Modes with redundant passes.


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on one device, as XLA assigned them.

  Attributes:
    arguments: All that are not on the host.
    outputs: The same, also those in the memory of donated arguments.
    donated: Outputs in the memory of donated arguments.
    temp: Temporary memory.
    host: Arguments and outputs in host memory.
  """

  arguments: int
  outputs: int
  donated: int
  temp: int
  host: int

  @property
  def total(self) -> int:
    """All memory on the device, in bytes."""
    return self.arguments + self.outputs - self.donated + self.temp


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

  @functools.cached_property
  def memory(self) -> Memory:
    """Memory on one device."""
    sizes = self.compiled.memory_analysis()
    of = lambda what: getattr(sizes, f"{what}_size_in_bytes")
    return Memory(
        arguments=of("argument"),
        outputs=of("output"),
        donated=of("alias"),
        temp=of("temp"),
        host=of("host_argument") + of("host_output"),
    )


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
  place, cache = make_place(config, gpu), programs_lib.ProgramCache()
  for unit in programs_lib.find_kinds(task.whole.cut(plan.partition.bounds)):
    programs = cache.get(unit, place)
    for name in names or _needed(config):
      if (compiled := programs.compile(name, place)) is not None:
        yield unit, Program(unit.names[0], name, compiled)


def compile_segments(
    config: config_lib.Config, task: build.Task, plan: planner.Plan, gpu: machines.Machine
) -> Iterator[Program]:
  """Yields the programs of the SPMD executor.

  They are that of a segment, and that which finishes a step after a death.
  """
  devices = private.make_devices(targets.describe(gpu), plan.num_stages)
  # `plan` may have the times of ticks already.
  rows = build.make_plan(config, plan.profile, cuts=executors.find_cuts(config, task))
  segments = executors.make_segments(config, task, rows, devices)
  for name, program in segments.items():
    on_host = jax.tree.leaves((program.fetched, program.host))
    with private.host_arguments(len(on_host)):
      yield Program("pipeline", name, program.segment)


def make_place(config: config_lib.Config, gpu: machines.Machine) -> places.Place:
  """Returns where a node computes: a device, or a mesh of several."""
  shape = (config.node.mesh.data, config.node.mesh.tensor)
  devices = private.make_devices(targets.describe(gpu), math.prod(shape))
  if len(devices) == 1:
    return devices[0]
  return jax.sharding.Mesh(np.array(devices).reshape(shape), sharding.AXES)


def _needed(config: config_lib.Config) -> list[str]:
  is_mesh = config.node.mesh.data * config.node.mesh.tensor > 1
  names = [*_ALWAYS]
  if config.evaluate.every_steps:
    names.append("evaluate")
  if config.redundancy.mode in _AHEAD and not is_mesh:
    names.append("redundant")
  return names
