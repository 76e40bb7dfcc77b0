"""Makes model, data, plan and engine from a config.

The parts take plain arguments, so that the library below needs no config.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
from typing import Any

import jax

from bamboo_jax import base, config as config_lib
from bamboo_jax.data import batches as batches_lib, source as source_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.models import model as model_lib, units, zoo
from bamboo_jax.plan import cost_model, partition as partition_lib, planner, rows as rows_lib
from bamboo_jax.runtime import devices as devices_lib, engine as engine_lib, places
from bamboo_jax.runtime.profile import profiler, roofline
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.training.setup import optimizers, schedules, sizes


@dataclasses.dataclass(frozen=True)
class Task:
  """Model, data and learning rate, without their layout on nodes.

  `whole` is the model as a single stage. A task that is only planned may have
  no `data`.
  """

  whole: spec_lib.StageSpec
  data: batches_lib.Batches | None
  schedule: schedules.LearningRateSchedule

  @property
  def batches(self) -> batches_lib.Batches:
    """The data, of a task that is trained."""
    assert self.data is not None, "This task was made to be planned only."
    return self.data


def check_environment() -> None:
  """Raises `ValueError` for 64-bit floats."""
  if jax.config.jax_enable_x64:  # Arrays of the state would be float64.
    raise ValueError("JAX_ENABLE_X64 is set, but parameters are float32: unset it.")


def make_task(config: config_lib.Config, *, needs_data: bool = True) -> Task:
  """Returns model, optimizer and data; `ValueError` names an invalid option.

  Without `needs_data` there is none if the model knows the shapes of samples;
  otherwise it is read to find them.
  """
  pipeline = config.pipeline
  check_environment()
  model = zoo.make_model(config.model.name, **config.model.options)
  if model.sample and not needs_data:
    batch = model.batch_shapes(pipeline.microbatch_size)
    return Task(_make_whole(config, model, batch), None, _make_schedule(config))
  source = source_lib.open_source(
      config.data.name, _source_shape(config, model), config.data.options
  )
  vocab_size = model.fingerprint.get("vocab_size", math.inf)
  if source.vocab_size is not None and source.vocab_size > vocab_size:
    raise ValueError(
        f"The data has vocab_size={source.vocab_size}, more than the model's "
        f"vocab_size={vocab_size}."
    )
  batches = batches_lib.Batches(
      source,
      seed=config.seed,
      num_microbatches=pipeline.num_pipelines * pipeline.num_microbatches,
      microbatch_size=pipeline.microbatch_size,
  )
  if config.evaluate.every_steps and not source.num_heldout:
    raise base.DataError(
        "There are no held-out samples to evaluate. Use more data, "
        "config.evaluate.every_steps=0, or hold more out: "
        "config.data.options.heldout_fraction, or in a function of your own "
        "bamboo_jax.from_arrays(arrays, heldout_fraction=0.1)."
    )
  batch = {
      key: jax.ShapeDtypeStruct(array.shape, array.dtype)
      for key, array in batches.microbatch(0, 0).items()
  }
  if not model.sample:  # One of the user's own.
    sample = {
        key: jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for key, array in batch.items()
    }
    model = dataclasses.replace(model, sample=sample)
  whole = _make_whole(config, model, batch)
  return Task(whole, batches, _make_schedule(config))


def _make_schedule(config: config_lib.Config) -> schedules.LearningRateSchedule:
  return schedules.make_schedule(config.optimizer, num_steps=config.num_steps)


def _make_whole(
    config: config_lib.Config, model: model_lib.Model, batch: Mapping[str, jax.ShapeDtypeStruct]
) -> spec_lib.StageSpec:
  for name in model.metrics(batch, train=True) + model.metrics(batch, train=False):
    if jsonl.is_reserved(name):
      raise ValueError(f"A metric cannot be called {name!r}, a name that the log has already.")
  return spec_lib.StageSpec(
      model=model,
      first=0,
      last=len(model.layers),
      batch=batch,
      optimizer=optimizers.make_optimizer(config.optimizer, _make_schedule(config).rate),
      remat=config.pipeline.remat,
      seed=config.seed,
      prng=config.model.prng,
  )


def make_profile(
    config: config_lib.Config, task: Task, *, efficiency: float | None = None
) -> cost_model.Profile:
  """Returns the profile that the config names, or an estimate, of one node.

  `efficiency` is the share of the roofline of `config.plan.machine` that passes
  reach; None: the likely one. Raises `base.StaleProfileError` if the profile is
  of another model or device.
  """
  profile, machine = _find_profile(config, task), sizes.find_machine(config)
  if profile.measured or machine is None:
    return profile.on_mesh(sizes.num_devices(config))
  return roofline.on_mesh(
      profile,
      machine,
      efficiency=efficiency or machine.efficiency.likely,
      data=config.node.mesh.data,
      tensor=config.node.mesh.tensor,
  )


def _find_profile(config: config_lib.Config, task: Task) -> cost_model.Profile:
  device, machine = jax.devices()[0], sizes.find_machine(config)
  fingerprint = profiler.fingerprint_of(task.whole, device=device)
  path = config.plan.profile
  if path is None:
    rates = roofline.assume(device.platform)
    if machine is not None:
      rates = roofline.Roofline.of(task.whole, machine)
    return profiler.estimate(task.whole, rates, fingerprint=fingerprint)
  text = pathlib.Path(path).read_bytes().decode("utf-8-sig", "replace")
  profile = cost_model.from_json(text, source=path)
  if machine is not None:  # The profile is of it, not of this one.
    fingerprint["device"] = profile.fingerprint.get("device")
  try:
    profile.check_fingerprint(fingerprint)
  except base.StaleProfileError as error:
    raise base.StaleProfileError(f"{path}: {error}") from error
  return profile


def make_plan(
    config: config_lib.Config,
    profile: cost_model.Profile,
    *,
    cuts: Sequence[int] | None = None,
    is_cluster: bool = False,
    num_stages: int | None = None,
) -> planner.Plan:
  """Returns the plan of a config; pure, needs no device.

  Args:
    cuts: Layers at which a stage may start; by default those of any unit.
    is_cluster: Whether each node is a process of its own.
    num_stages: By default that of the config.

  Raises:
    base.InfeasibleError: No partition fits in memory.
  """
  pipeline = config.pipeline
  return planner.make_plan(
      profile,
      num_stages=num_stages or pipeline.num_stages,
      num_pipelines=pipeline.num_pipelines,
      num_microbatches=pipeline.num_microbatches,
      microbatch_size=pipeline.microbatch_size,
      num_shares=pipeline.num_shares or pipeline.num_pipelines,
      schedule=pipeline.schedule,
      cuts=find_cuts(profile) if cuts is None else cuts,
      **memory_options(config, is_cluster=is_cluster),
  )


def find_cuts(profile: cost_model.Profile) -> tuple[int, ...]:
  """Returns the layers at which a stage other than the first may start."""
  return units.find_cuts([layer.name for layer in profile.layers])


def memory_options(config: config_lib.Config, *, is_cluster: bool) -> dict[str, Any]:
  """Returns the memory arguments of `planner.make_plan`, by name."""
  limit, machine = config.plan.memory_limit_gib, sizes.find_machine(config)
  if machine is not None:
    limit = machine.memory_bytes / 2**30
  if limit is not None:  # Of each device; what a node holds is cut over all.
    limit = int(limit * 2**30) * sizes.num_devices(config)
  return {
      "memory_limit_bytes": limit,
      "protection": config.redundancy,
      "reroutes": config.recovery.reroute,
      "is_remote": is_cluster,
  }


def make_rows(
    config: config_lib.Config, plan: planner.Plan, segments: partition_lib.Partition | None = None
) -> rows_lib.RowPlanner:
  """Returns the planner of rows; `segments` are by default the stages of `plan`."""
  return rows_lib.RowPlanner(plan, config.redundancy, segments)


def make_engine(
    config: config_lib.Config,
    task: Task,
    plan: planner.Plan,
    *,
    cache: programs_lib.ProgramCache,
    devices: Mapping[base.NodeId, jax.Device] | None = None,
    exchange: transport_lib.Transport | None = None,
    segments: partition_lib.Partition | None = None,
) -> engine_lib.Engine:
  """Returns the engine, without compiled programs and state.

  Args:
    cache: May hold the programs of an earlier engine.
    devices: Device of each local node; None: those of this process, in turn.
    exchange: Transport to other processes; None without.
    segments: By default the stages of `plan`.
  """
  mesh, model = config.node.mesh, task.whole.model.name
  places.find_rules(task.whole.state, model, mesh.to_dict())
  segments = segments or plan.partition
  firsts = segments.bounds[:-1]
  stages = [plan.partition.stage_of(first) for first in firsts]
  return engine_lib.Engine(
      task.whole.cut(segments.bounds),
      owners=[[row[stage] for stage in stages] for row in plan.owners],
      devices=devices or devices_lib.place_nodes(base.nodes(sizes.num_nodes(config))),
      num_shares=plan.batch.num_shares,
      keep=config.redundancy.has_replicas or config.recovery.reroute,
      replicas=config.redundancy,
      mesh=(mesh.data, mesh.tensor),
      cache=cache,
      # On a CPU all memory is the host's.
      residuals="host" if jax.default_backend() == "cpu" else plan.residuals,
      exchange=exchange,
  )


def _source_shape(config: config_lib.Config, model: model_lib.Model) -> dict[str, Any]:
  """Returns the shapes of samples that the model asks of a data source."""
  shape = {
      key: model.fingerprint[key]
      for key in (*("sequence_length", "num_masked", "image_size", "num_classes"), "documents")
      if key in model.fingerprint
  }
  if "vocab_size" in config.model.options:
    shape["vocab_size"] = config.model.options["vocab_size"]
  return shape
