"""Makes the simulated policies from settings.

All use the same ladder; they differ in the enabled rungs, in the pipelines that
are formed, and in their redundancy.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import itertools
import math

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import cost_model, memory as memory_lib, partition as partition_lib
from bamboo_jax.plan.times import predictor as predictor_lib
from bamboo_jax.recovery import (
    ladder as ladder_lib,
    planner as planner_lib,
    shapes as shapes_lib,
    templates as templates_lib,
)
from bamboo_jax.schedule import lines as lines_lib
from bamboo_jax.sim import (
    communication as communication_lib,
    decisions,
    loop,
    places,
    shapes as sim_shapes,
    speed as speed_lib,
    times as times_lib,
)

RUNGS = ("shadow", "reroute", "drop", "reconfigure", "checkpoint")
LAYOUTS = ("depth", "templates", "grid", "liveput")

# Makes the shapes of pipelines from settings, a workload and a predictor.
MakeShapes = Callable[["Settings", "Workload", predictor_lib.Predictor], shapes_lib.Shapes]
_OWN_LAYOUTS: dict[str, MakeShapes] = {}


def register_layout(name: str, make_shapes: MakeShapes) -> None:
  """Names a user's own planner as a layout of `Settings`."""
  _OWN_LAYOUTS[name] = make_shapes


# Arrangements tried: the start is good, and more would take too long here.
_MAX_TRIES = 20
_LIVEPUT = "liveput"
# Of the systems that policies are named after, which use NCCL.
_NCCL = communication_lib.Communication(reduction="ring", overlap="drain", duplex="full")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """The settings of a policy.

  Attributes:
    rungs: The rungs of its ladder, of `RUNGS`.
    layout: Pipelines of one "depth", "templates" of many depths that leave no
      node idle, the fastest "grid" of pipelines and depths, or "liveput": the
      one depth with the highest expected throughput.
    overprovision: Stages of a pipeline, as a multiple of those of the workload.
    max_pipelines: Maximum number of pipelines of layout "depth"; None: no
      limit.
    depths: Numbers of stages for the layouts "grid" and "liveput", as multiples
      of those of the workload.
    num_failures: Simultaneous losses that the layout "templates" must survive.
    method: How that layout adapts pipelines, by "replanning" or by "rules".
    use_all: Whether that layout uses every node, even if fewer are faster.
    placement: One of `places.METHODS`.
    redundant: How stages are protected if the rung "shadow" is enabled.
    picks_mode: Whether its mode is "bubble" or no shadows, whichever has the
      higher expected throughput.
    charges_replicas: Whether the memory limit includes replicas, also after any
      single death, as in a run; else only a node's own stage.
    communication: The cost of summing gradients and refreshing replicas.
    reroute: See `ladder.Ladder` for this and the next four.
    is_preemptible: Whether nodes are preempted; else they stay, and cost more.
  """

  rungs: tuple[str, ...] = ("shadow", "reroute", "reconfigure", "checkpoint")
  layout: str = "grid"
  overprovision: float = 1.0
  max_pipelines: int | None = None
  depths: tuple[float, ...] = shapes_lib.GRID_DEPTHS
  num_failures: int = 1
  method: str = "replanning"
  use_all: bool = True
  placement: str = "spread"
  redundant: config_lib.RedundancySection = config_lib.RedundancySection(mode="bubble")
  picks_mode: bool = False
  charges_replicas: bool = True
  communication: communication_lib.Communication = _NCCL
  reroute: str = "shares"
  fold: bool = True
  hand_over: bool = True
  horizon_secs: float = 600.0
  is_preemptible: bool = True

  def __post_init__(self) -> None:
    if not self.rungs:
      raise ValueError(f"rungs must name some of {', '.join(RUNGS)}.")
    for rung in self.rungs:
      if rung not in RUNGS:
        raise ValueError(base.suggest(rung, RUNGS, what="rung"))
    layouts = (*LAYOUTS, *_OWN_LAYOUTS)
    if self.layout not in layouts:
      raise ValueError(base.suggest(self.layout, layouts, what="layout"))
    for name, is_right, allowed in (
        ("overprovision", self.overprovision > 0, "above 0"),
        (
            "max_pipelines",
            self.max_pipelines is None or self.max_pipelines > 0,
            "None or at least 1",
        ),
        ("depths", self.depths and min(self.depths) > 0, "one or more above 0"),
        ("num_failures", self.num_failures >= 0, "at least 0"),
    ):
      if not is_right:
        raise ValueError(f"{name} must be {allowed}, got {getattr(self, name)}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
  """The training job.

  Attributes:
    costs: The profile of a model, or its measured throughput by node count.
    num_stages: Stages of a pipeline, unless a setting overrides it.
    num_microbatches: Per step, over all pipelines.
    memory_limit_bytes: Of a node's device; None: no limit.
    gpus_per_node: GPUs that share the work of a node, whose costs are `costs`,
      connected at `inner_bytes_per_sec` each way.
  """

  costs: cost_model.Profile | speed_lib.Table
  num_stages: int
  num_microbatches: int = 1
  microbatch_size: int = 1
  memory_limit_bytes: int | None = None
  gpus_per_node: int = 1
  inner_bytes_per_sec: float = 1.5e11

  def __post_init__(self) -> None:
    counts = ("num_stages", "num_microbatches", "microbatch_size")
    for name in (*counts, "gpus_per_node"):
      if getattr(self, name) < 1:
        value = getattr(self, name)
        raise ValueError(f"{name} must be at least 1, got {value}.")


def make_choices(
    name: str,
    settings: Settings,
    workload: Workload,
    durations: times_lib.Durations,
    *,
    seed: int = 0,
) -> tuple[loop.Policy, ...]:
  """Returns the candidates for `picks_mode` or layout "liveput", else one policy.

  A policy caches its plans from run to run. The seed is for the placement
  "random". Raises `ValueError` that names the policy.
  """
  policies, refusal = [], None
  for chosen in _choices(settings):
    try:
      policies.append(_Maker(chosen, workload, durations).make(name, seed))
    except base.InfeasibleError as error:
      refusal = error
    except ValueError as error:
      raise ValueError(f"Policy {name!r}: {error}") from error
  if not policies:
    raise base.InfeasibleError(f"Policy {name!r}: {refusal}") from refusal
  return tuple(policies)


def _choices(settings: Settings) -> Iterator[Settings]:
  modes = (settings.redundant.mode,)
  if settings.picks_mode:
    modes = ("none", "bubble") if "shadow" in settings.rungs else ("none",)
  layout, depths = settings.layout, (1.0,)
  if layout == _LIVEPUT:
    layout, depths = "depth", settings.depths
  for depth, mode in itertools.product(depths, modes):
    yield dataclasses.replace(
        settings,
        layout=layout,
        overprovision=depth * settings.overprovision,
        redundant=dataclasses.replace(settings.redundant, mode=mode),
    )


@dataclasses.dataclass(frozen=True)
class _Maker:
  settings: Settings
  workload: Workload
  durations: times_lib.Durations

  def make(self, name: str, seed: int) -> loop.Policy:
    settings, workload = self.settings, self.workload
    redundant = settings.redundant
    has_replicas = "shadow" in settings.rungs and redundant.has_replicas
    if not has_replicas:
      redundant = config_lib.RedundancySection()
    num_stages = math.ceil(workload.num_stages * settings.overprovision)
    options = config_lib.RecoverySection(
        reroute="reroute" in settings.rungs,
        drop="drop" in settings.rungs,
        reconfigure="reconfigure" in settings.rungs,
        checkpoint="checkpoint" in settings.rungs,
        fold=settings.fold,
        hand_over=settings.hand_over,
        horizon_secs=settings.horizon_secs,
        num_failures=settings.num_failures,
        method=settings.method,
    )
    ladder = ladder_lib.Ladder(options, has_replicas, settings.reroute)
    profile = None
    if isinstance(workload.costs, speed_lib.Table):
      shapes: shapes_lib.Shapes = sim_shapes.TableShapes(
          num_stages,
          has_replicas,
          is_even=settings.layout != "depth",
          max_pipelines=settings.max_pipelines,
      )
      speed: times_lib.Speed = workload.costs
    else:
      profile = workload.costs
      predicted = speed = self._make_speed(profile, redundant, ladder.reroute)
      shapes = self._shapes(predicted.predictor, num_stages, options)
    times = times_lib.PipelineTimes(speed, self.durations, drops=options.drop, profile=profile)
    placer = places.Placer(
        settings.placement, has_replicas=has_replicas, seed=seed, max_tries=_MAX_TRIES
    )
    planner = planner_lib.Planner(shapes, times, fold=options.fold, arrange=placer.arrange)
    return loop.Policy(
        name=name,
        decider=decisions.Decider(ladder, planner, times, heeds_zones=placer.heeds_zones),
        durations=self.durations,
        market="spot" if settings.is_preemptible else "on_demand",
    )

  def _make_speed(
      self, profile: cost_model.Profile, redundant: config_lib.RedundancySection, reroute: str
  ) -> speed_lib.ProfileSpeed:
    settings, workload = self.settings, self.workload
    return speed_lib.ProfileSpeed(
        profile,
        reroute=reroute,
        memory_limit_bytes=workload.memory_limit_bytes,
        num_microbatches=workload.num_microbatches,
        microbatch_size=workload.microbatch_size,
        redundant=redundant,
        communication=dataclasses.replace(
            settings.communication,
            gpus_per_node=workload.gpus_per_node,
            inner_bytes_per_ms=workload.inner_bytes_per_sec / 1e3,
        ),
        split="makespan" if settings.layout == "templates" else "even",
    )

  def _shapes(
      self, predictor: predictor_lib.Predictor, num_stages: int, options: config_lib.RecoverySection
  ) -> shapes_lib.Shapes:
    settings = self.settings
    num_layers = len(predictor.profile.layers)
    if make := _OWN_LAYOUTS.get(settings.layout):
      return make(settings, self.workload, predictor)
    if settings.layout == "depth":
      if num_stages > num_layers:
        raise base.InfeasibleError(
            f"num_stages={num_stages} needs as many layers, of which there are {num_layers}."
        )
      partitions: shapes_lib.Partitions = (self._partition(num_stages, predictor),)
      return shapes_lib.Templates(
          partitions, predictor, options, max_pipelines=settings.max_pipelines
      )
    if settings.layout == "grid":
      wanted = {math.ceil(f * num_stages) for f in settings.depths}
      depths = sorted({min(depth, num_layers) for depth in wanted})
      partitions = self._partitions(depths, predictor)
      return shapes_lib.Templates(partitions, predictor, options, uses_all=False)
    make_templates = functools.partial(
        templates_lib.make_templates,
        predictor.profile.layers,
        num_failures=settings.num_failures,
        memory_limit_bytes=self.workload.memory_limit_bytes,
        min_nodes=max(1, num_stages // 2),
        num_microbatches=self.workload.num_microbatches,
        upkeep=self._upkeep(predictor.has_replicas),
    )
    found = make_templates()
    # Depths above the necessary one give more choice.
    most = min(num_stages + num_stages // 2, num_layers)
    if found[-1].partition.num_stages < most:
      found = make_templates(max_nodes=most)
    partitions = tuple(template.partition for template in found)
    return shapes_lib.Templates(
        partitions, predictor, options, mixes=True, uses_all=settings.use_all
    )

  def _partitions(
      self, depths: Sequence[int], predictor: predictor_lib.Predictor
  ) -> shapes_lib.Partitions:
    found, refusals = [], []
    for num_stages in depths:
      try:
        found.append(self._partition(num_stages, predictor))
      except base.InfeasibleError as error:
        refusals.append(error)
    if not found:
      raise refusals[-1]
    return tuple(found)

  def _partition(
      self, num_stages: int, predictor: predictor_lib.Predictor
  ) -> partition_lib.Partition:
    workload, costs = self.workload, self.workload.costs
    assert isinstance(costs, cost_model.Profile)
    return partition_lib.split_layers(
        costs.layers,
        num_stages=num_stages,
        memory_limit_bytes=workload.memory_limit_bytes,
        in_flight=lines_lib.in_flight_bounds(num_stages, workload.num_microbatches),
        upkeep=self._upkeep(predictor.has_replicas),
    )

  def _upkeep(self, has_replicas: bool) -> memory_lib.Upkeep:
    settings = self.settings
    if not (has_replicas and settings.charges_replicas):
      return memory_lib.OVERLAPPED
    return dataclasses.replace(memory_lib.OVERLAPPED, protection=settings.redundant)
