"""Makes model, data, plan, rules of recovery and engine from a config.

No other module of this package names one of `runtime.spmd`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math

import jax
import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import machines
from bamboo_jax.data import batches as batches_lib, source as source_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.models import model as model_lib, units, zoo
from bamboo_jax.plan import (
    cost_model,
    memory as memory_lib,
    planner as plan_lib,
    predictor as predictor_lib,
)
from bamboo_jax.recovery import assignment, decide, planner as planner_lib, shapes as shapes_lib
from bamboo_jax.runtime import devices as devices_lib, engine as engine_lib, places
from bamboo_jax.runtime.profile import profiler, roofline
from bamboo_jax.runtime.spmd import (
    executor as spmd_executor,
    layout as layout_lib,
    passes as passes_lib,
    plan as program_plan,
    processes as processes_lib,
    program as program_lib,
)
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import costs as costs_lib, redundancy
from bamboo_jax.training.setup import optimizers, sizes

SharedMemory = processes_lib.SharedMemory
ProcessRing = processes_lib.ProcessRing
ProgramPlan = program_plan.ProgramPlan
Programs = spmd_executor.Programs
run_child = processes_lib.live


@dataclasses.dataclass(frozen=True)
class Task:
  """Model, data and learning rate, without their layout on nodes.

  `whole` is the model as a single stage. A task that is only planned may have
  no `data`. `programs` are the model's, traced and compiled as they are needed.
  """

  whole: spec_lib.StageSpec
  data: batches_lib.Batches | None
  schedule: optimizers.LearningRateSchedule
  programs: programs_lib.ProgramCache

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
  check_environment()
  model, batches = zoo.make_model(config.model.name, **config.model.options), None
  if model.sample and not needs_data:
    batch = model.batch_shapes(config.pipeline.microbatch_size)
  else:
    batches = _open_batches(config, model)
    arrays = batches.microbatch(0, 0)
    batch = {k: jax.ShapeDtypeStruct(array.shape, array.dtype) for k, array in arrays.items()}
    for name, array in arrays.items():
      is_token = name in model.sample and np.dtype(model.sample[name].dtype).kind == "i"
      if is_token and array.dtype.kind not in "iu":
        raise base.DataError(f"Array {name!r} of the data must have integers, got {array.dtype}.")
  if not model.sample:  # One of the user's own.
    sample = {k: jax.ShapeDtypeStruct(one.shape[1:], one.dtype) for k, one in batch.items()}
    model = dataclasses.replace(model, sample=sample)
  for name in model.metrics(batch, train=True) + model.metrics(batch, train=False):
    if jsonl.is_reserved(name):
      raise ValueError(f"A metric cannot be called {name!r}, a name that the log has already.")
  schedule = optimizers.make_schedule(config.optimizer, num_steps=config.num_steps)
  whole = spec_lib.StageSpec(
      model=model,
      first=0,
      last=len(model.layers),
      batch=batch,
      optimizer=optimizers.make_optimizer(config.optimizer, schedule.rate),
      remat=config.pipeline.remat,
      seed=config.seed,
      prng=config.model.prng,
  )
  return Task(whole, batches, schedule, programs_lib.ProgramCache())


def _open_batches(config: config_lib.Config, model: model_lib.Model) -> batches_lib.Batches:
  pipeline, known = config.pipeline, model.fingerprint
  shape = {
      key: known[key]
      for key in ("sequence_length", "num_masked", "image_size", "num_classes", "documents")
      if key in known
  }
  if "vocab_size" in config.model.options:
    shape["vocab_size"] = config.model.options["vocab_size"]
  source = source_lib.open_source(config.data.name, shape, config.data.options)
  vocab_size = known.get("vocab_size", math.inf)
  if source.vocab_size is not None and source.vocab_size > vocab_size:
    raise ValueError(
        f"The data has vocab_size={source.vocab_size}, more than the model's "
        f"vocab_size={vocab_size}."
    )
  if config.evaluate.every_steps and not source.num_heldout:
    raise base.DataError(
        "There are no held-out samples to evaluate. Use more data, "
        "config.evaluate.every_steps=0, or hold more out: "
        "config.data.options.heldout_fraction, or in a function of your own "
        "bamboo_jax.from_arrays(arrays, heldout_fraction=0.1)."
    )
  return batches_lib.Batches(
      source,
      seed=config.seed,
      num_microbatches=pipeline.num_pipelines * pipeline.num_microbatches,
      microbatch_size=pipeline.microbatch_size,
  )


def make_profile(
    config: config_lib.Config, task: Task, *, efficiency: float | None = None
) -> cost_model.Profile:
  """Returns the profile that the config names, or an estimate, of one node.

  `efficiency` is the share of the roofline of `config.plan.machine` that passes
  reach; None: the likely one. Raises `ValueError` if the profile is
  of another model or device.
  """
  device, machine, mesh = jax.devices()[0], sizes.find_machine(config), config.node.mesh
  fingerprint = profiler.fingerprint_of(task.whole, device=device)
  if (path := config.plan.profile) is None:
    rates = roofline.assume(device.platform)
    if machine is not None:
      rates = roofline.Roofline.of(task.whole, machine)
    profile = profiler.estimate(task.whole, rates, fingerprint=fingerprint, cache=task.programs)
  else:
    profile = cost_model.read_profile(path)
    if machine is not None:  # The profile is of it, not of this one.
      fingerprint["device"] = profile.fingerprint.get("device")
    profile.check_fingerprint(fingerprint, where=f"config.plan.profile={path}")
  if profile.measured or machine is None:
    return profile.on_mesh(sizes.num_devices(config))
  efficiency = efficiency or machine.efficiency.likely
  return roofline.on_mesh(
      profile, machine, efficiency=efficiency, data=mesh.data, tensor=mesh.tensor
  )


def is_program(config: config_lib.Config) -> bool:
  """Returns whether a step is one program per pipeline, not rows."""
  return config.pipeline.executor == "spmd"


def find_cuts(config: config_lib.Config, task: Task) -> tuple[int, ...]:
  """Returns the layers at which a stage other than the first may start.

  Raises `ValueError` unless a program's stages can be equal blocks of the model.
  """
  if is_program(config):
    return layout_lib.split_blocks(task.whole, config.pipeline.num_stages).cuts
  return units.find_cuts(task.whole.names)


def plan_run(
    config: config_lib.Config, task: Task, profile: cost_model.Profile, *, is_cluster: bool = False
) -> tuple[plan_lib.Plan, Sequence[shapes_lib.Template]]:
  """Returns the plan of a run, and its templates, if its layout has some.

  Raises as `find_cuts`, `make_plan` and `make_templates`.
  """
  templates = make_templates(config, profile, is_cluster=is_cluster)
  plan = make_plan(
      config,
      profile,
      cuts=find_cuts(config, task),
      is_cluster=is_cluster,
      num_stages=templates[0].partition.num_stages if templates else None,
  )
  return plan, templates


def make_plan(
    config: config_lib.Config,
    profile: cost_model.Profile,
    *,
    cuts: Sequence[int] | None = None,
    is_cluster: bool = False,
    num_stages: int | None = None,
) -> plan_lib.Plan:
  """Returns the plan of a config; pure, needs no device.

  Args:
    cuts: Layers at which a stage may start; by default those of any unit.
    is_cluster: Whether each node is a process of its own.
    num_stages: By default that of the config.

  Raises:
    base.InfeasibleError: No partition fits in memory.
  """
  pipeline = config.pipeline
  return plan_lib.make_plan(
      profile,
      dataclasses.replace(pipeline, num_stages=num_stages or pipeline.num_stages),
      cuts=_cuts_of(profile) if cuts is None else cuts,
      memory_limit_bytes=machines.find_memory_limit(config),
      protection=config.redundancy,
      reroutes=config.recovery.reroute,
      is_remote=is_cluster,
  )


def _cuts_of(profile: cost_model.Profile) -> tuple[int, ...]:
  return units.find_cuts([layer.name for layer in profile.layers])


def make_templates(
    config: config_lib.Config, profile: cost_model.Profile, *, is_cluster: bool = False
) -> tuple[shapes_lib.Template, ...]:
  """Returns the pipeline templates of a config; none if its layout has none.

  They cover any sufficient number of nodes: the deepest has about twice the
  nodes of the smallest (Oobleck, SOSP'23, section 4). Raises
  `base.InfeasibleError` if the model has too few layers or does not fit.
  """
  pipeline, num_failures = config.pipeline, config.recovery.num_failures
  if pipeline.layout != "templates":
    return ()
  num_shares = pipeline.num_shares or pipeline.num_pipelines
  most_shares = max(1, num_shares - num_failures)  # Others may have one.
  upkeep = memory_lib.Upkeep(
      num_accumulators=most_shares,
      num_rerouted=num_shares - most_shares if config.recovery.reroute else 0,
      num_shares=most_shares,
      protection=config.redundancy,
      is_remote=is_cluster,
  )
  cuts = _cuts_of(profile)
  _check_depth(config, most_nodes=len(cuts) + 1)
  return shapes_lib.make_templates(
      profile.layers,
      num_failures=num_failures,
      min_nodes=pipeline.num_stages,
      num_microbatches=pipeline.total_microbatches,
      upkeep=upkeep,
      ties=profile.ties,
      cuts=cuts,
      memory_limit_bytes=machines.find_memory_limit(config),
  )


def _check_depth(config: config_lib.Config, *, most_nodes: int) -> None:
  """Raises `base.InfeasibleError` if templates are deeper than the model."""
  num_stages, policy = config.pipeline.num_stages, config.recovery.policy
  need = functools.partial(shapes_lib.needed_max_nodes, num_failures=config.recovery.num_failures)
  if need(num_stages) <= most_nodes:
    return
  most = max(n for n in range(1, most_nodes + 1) if need(n) <= most_nodes)
  what = f"recovery.policy={policy}" if policy else "pipeline.layout=templates"
  raise base.InfeasibleError(
      f"{what} needs pipelines of up to {need(num_stages)} nodes here "
      f"(templates from num_stages={num_stages} on), but this model can be cut "
      f"into {most_nodes} parts at most. Take "
      f"--config.pipeline.num_stages={most}, or a model with more blocks."
  )


def make_rules(
    config: config_lib.Config,
    plan: plan_lib.Plan,
    templates: Sequence[shapes_lib.Template] = (),
    names: assignment.RegionNames = (),
) -> assignment.RecoveryRules:
  """Returns the rules for a run that starts with `plan`.

  The number of stages and the partition change only with `templates` or a grid
  of depths. `ValueError` names an option that is not allowed.

  Args:
    names: Region of each node; () if there is one, or all links are alike.
  """
  recovery = config.recovery
  reroute = "whole_shares" if is_program(config) else "shares"
  ladder = decide.Ladder(
      recovery, config.redundancy.has_replicas, reroute if recovery.reroute else "none"
  )
  num_shares = plan.batch.num_shares
  # A memory limit allows a pipeline only the shares that it starts with.
  is_finer = num_shares > plan.num_pipelines and plan.memory_limit_bytes is None
  by_makespan = bool(templates) or is_finer
  spread, link = None, config.plan.region_link
  if link is not None and names:
    regions = costs_lib.Regions(dict(names), *link)
    costs = dataclasses.replace(plan.costs, regions=regions)
    profile = dataclasses.replace(plan.profile, regions=regions)
    plan = dataclasses.replace(plan, profile=profile, costs=costs)
  elif link is not None:
    # A member plans for a view several times.
    spread = functools.lru_cache(4)(functools.partial(make_rules, config, plan, templates))
  predicted = predictor_lib.Predictor(
      plan.profile,
      num_microbatches=plan.batch.total_microbatches,
      num_shares=num_shares,
      by_makespan=by_makespan,
      group=plan.batch.microbatches_per_share,
      redundant=config.redundancy,
  )
  partitions: shapes_lib.Partitions = (plan.partition,)
  if templates:
    partitions = tuple(template.partition for template in templates)
  elif config.pipeline.layout == "grid":  # Of the depths that Varuna chooses from.
    most = len(_cuts_of(plan.profile)) + 1
    depths = {min(math.ceil(f * plan.num_stages), most) for f in shapes_lib.GRID_DEPTHS}
    make = functools.partial(make_plan, config, plan.profile)
    partitions = tuple(make(num_stages=depth).partition for depth in sorted(depths))
  shape = shapes_lib.Templates(
      partitions,
      predicted,
      recovery,
      mixes=bool(templates),
      uses_all=config.pipeline.layout != "grid",
      degrades=True,
  )
  return assignment.RecoveryRules(
      plan=plan.cut(partitions),
      predictor=predicted,
      ladder=ladder,
      planner=planner_lib.Planner(
          shape,
          planner_lib.PredictedTimes(predicted),
          fold=recovery.fold,
          arrange=shape.arrange,
          is_strict=shape.mixes,
      ),
      spread=spread,
  )


def make_engine(
    config: config_lib.Config,
    task: Task,
    plan: plan_lib.Plan,
    *,
    devices: Mapping[base.NodeId, jax.Device] | None = None,
    exchange: transport_lib.Transport | None = None,
) -> engine_lib.Engine:
  """Returns the engine, without compiled programs and state.

  Args:
    devices: Device of each local node; None: those of this process, in turn.
    exchange: Transport to other processes; None without.
  """
  mesh, model = config.node.mesh, task.whole.model.name
  places.find_rules(task.whole.state, model, mesh.to_dict())
  segments = plan.segments
  stages = [plan.partition.stage_of(first) for first in segments.bounds[:-1]]
  return engine_lib.Engine(
      task.whole.cut(segments.bounds),
      owners=[[row[stage] for stage in stages] for row in plan.owners],
      devices=devices or devices_lib.place_nodes(base.nodes(sizes.num_nodes(config))),
      num_shares=plan.batch.num_shares,
      keep=config.redundancy.has_replicas or config.recovery.reroute,
      replicas=config.redundancy,
      mesh=(mesh.data, mesh.tensor),
      cache=task.programs,
      # On a CPU all memory is the host's.
      residuals="host" if jax.default_backend() == "cpu" else plan.residuals,
      exchange=exchange,
  )


def plan_program(config: config_lib.Config, task: Task, plan: plan_lib.Plan) -> ProgramPlan:
  """Returns the program of a plan; its stages must start at `find_cuts`."""
  return program_plan.plan_program(
      plan,
      layout_lib.make_layout(task.whole, plan.partition.bounds),
      config.redundancy,
      config.pipeline.segment_ticks,
  )


def predict_step(
    config: config_lib.Config, task: Task, plan: plan_lib.Plan
) -> tuple[plan_lib.Plan, redundancy.PlannedRows | ProgramPlan]:
  """Returns the plan with times and timeline of a step with redundant passes, and that step."""
  if is_program(config):
    program = plan_program(config, task, plan)
    return program.plan, program
  rows = plan.first()
  compute_ms = plan.step_time.compute_ms + rows.timeline.span_ms - plan.timeline.span_ms
  step_time = dataclasses.replace(plan.step_time, compute_ms=compute_ms)
  return dataclasses.replace(plan, timeline=rows.timeline, step_time=step_time), rows


def make_segments(
    config: config_lib.Config, task: Task, plan: plan_lib.Plan, devices: Sequence[jax.Device]
) -> dict[str, program_lib.SegmentProgram]:
  """Returns the programs of a pipeline on `devices`, not compiled yet.

  By name: "segment", and "rest" for after a death, if one can be survived.
  """
  program = plan_program(config, task, plan)
  passes, (first, rest) = passes_lib.StagePasses(task.whole, program.layout), program.sizes
  found = {"segment": first} | ({"rest": rest} if program.keeps else {})
  return {name: program_lib.SegmentProgram(passes, size, devices) for name, size in found.items()}
