"""Makes the simulated policy of a config, and chooses by a forecast; one call for a run.

All policies use the ladder and the planner of runs; they differ in the rungs that are
switched on, in the pipelines that are formed, and in their redundancy.

Parcae (NSDI'24) plans for *liveput*, the throughput under predicted preemptions,
rather than for the fastest step. Here it is the throughput with each number of
nodes, weighted by its predicted time, minus the cost of losses. Losses have a
constant rate; each costs what the ladder would do about the loss of a single
node, until the node is replaced.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
import json
import math
import os
from typing import Any

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import machines, prices as prices_lib
from bamboo_jax.plan import (
    cost_model,
    memory as memory_lib,
    partition as partition_lib,
    predictor as predictor_lib,
)
from bamboo_jax.recovery import (
    decide,
    planner as planner_lib,
    policies as policies_lib,
    shapes as shapes_lib,
)
from bamboo_jax.schedule import lines as lines_lib
from bamboo_jax.sim import loop, speed as speed_lib, times as times_lib
from bamboo_jax.traces import generator, readers, trace as trace_lib

Config = config_lib.Config
Policy = loop.Policy
Costs = cost_model.Profile | speed_lib.Table

# Makes the shapes of pipelines from a config and a predictor of their steps.
MakeShapes = Callable[[Config, predictor_lib.Predictor], shapes_lib.Shapes]
_LIVEPUT = "liveput"
_OWN_LAYOUTS: dict[str, MakeShapes] = {}


def register_layout(name: str, make_shapes: MakeShapes) -> None:
  """Names a user's own planner, for `config.study.layout`."""
  _OWN_LAYOUTS[name] = make_shapes


def read_costs(config: Config) -> Costs | None:
  """Returns the costs in the file that the config names; None if it names none.

  Raises `OSError`, or `ValueError` for a file that does not fit.
  """
  if config.study.table.file is not None:
    return speed_lib.read_table(config.study.table)
  path, size = config.plan.profile, config.pipeline.microbatch_size
  if path is None:
    return None
  profile = cost_model.read_profile(path)
  for name, entry in profile.fingerprint.get("batch", {}).items():
    if len(entry) > 1 and entry[1] != size:
      raise ValueError(
          f"{path} was measured with {json.dumps({name: entry})}, so "
          f"config.pipeline.microbatch_size must be {entry[1]}, got {size}."
      )
  return profile


def make_choices(name: str, config: Config, costs: Costs) -> tuple[Policy, ...]:
  """Returns the candidates of a config that plans for a forecast, else one policy.

  A policy caches its plans from run to run. Raises `ValueError` that names the policy.
  """
  study, mode = config.study, config.redundancy.mode
  modes = ("none", mode) if study.picks_mode and mode != "none" else (mode,)
  depths, layout = (1.0,), {}
  if study.layout == _LIVEPUT:
    depths, layout = study.depths, {"study.layout": None, "pipeline.layout": "depth"}
  elif study.layout is not None and study.layout not in _OWN_LAYOUTS:
    raise ValueError(
        base.suggest(study.layout, (_LIVEPUT, *_OWN_LAYOUTS), what="value of config.study.layout")
    )
  policies, refusal = [], None
  for depth, mode in itertools.product(depths, modes):
    stages = depth * study.overprovision
    chosen = config.changed({"study.overprovision": stages, "redundancy.mode": mode, **layout})
    try:
      policies.append(_make(name, chosen, costs))
    except base.InfeasibleError as error:
      refusal = error
    except ValueError as error:
      raise ValueError(f"Policy {name!r}: {error}") from error
  if not policies:
    raise base.InfeasibleError(f"Policy {name!r}: {refusal}") from refusal
  return tuple(policies)


def _make(name: str, config: Config, costs: Costs) -> Policy:
  study, options = config.study, config.recovery
  has_replicas = config.redundancy.has_replicas
  ladder = decide.Ladder(options, has_replicas, study.reroute if options.reroute else "none")
  num_stages = math.ceil(config.pipeline.num_stages * study.overprovision)
  profile = None
  if isinstance(costs, speed_lib.Table):
    shapes: shapes_lib.Shapes = speed_lib.TableShapes(
        num_stages,
        has_replicas,
        is_even=config.pipeline.layout != "depth",
        max_pipelines=study.max_pipelines,
    )
    speed: times_lib.Speed = costs
  else:
    profile = costs
    predicted = speed = speed_lib.ProfileSpeed(
        profile,
        reroute=ladder.reroute,
        memory_limit_bytes=machines.find_memory_limit(config),
        num_microbatches=config.pipeline.total_microbatches,
        microbatch_size=config.pipeline.microbatch_size,
        redundant=config.redundancy,
        communication=speed_lib.Communication(study),
        by_makespan=config.pipeline.layout == "templates",
    )
    shapes = _make_shapes(config, predicted.predictor, num_stages)
  times = times_lib.PipelineTimes(speed, study.durations, drops=options.drop, profile=profile)
  in_order = None if study.spread else lambda partitions, nodes, zones: nodes
  planner = planner_lib.Planner(shapes, times, fold=options.fold, arrange=in_order)
  stays = config.cost.market == "on_demand" or not options.is_preemptible
  market = "on_demand" if stays else "spot"
  return Policy(name, ladder, planner, times, market=market, heeds_zones=study.spread)


def _make_shapes(
    config: Config, predictor: predictor_lib.Predictor, num_stages: int
) -> shapes_lib.Shapes:
  """Returns the shapes of a config; pipelines have `num_stages` unless that is planned."""
  options, study, layers = config.recovery, config.study, predictor.profile.layers
  limit_bytes = machines.find_memory_limit(config)
  num_microbatches = config.pipeline.total_microbatches
  upkeep = memory_lib.OVERLAPPED
  if predictor.has_replicas and study.charges_replicas:
    upkeep = dataclasses.replace(upkeep, protection=config.redundancy)

  def split(depth: int) -> partition_lib.Partition:
    in_flight = lines_lib.in_flight_bounds(depth, num_microbatches)
    return partition_lib.split_layers(
        layers, depth, limit_bytes, in_flight=in_flight, upkeep=upkeep
    )

  if make := _OWN_LAYOUTS.get(study.layout or ""):
    return make(config, predictor)
  if config.pipeline.layout == "templates":
    templates = shapes_lib.make_templates(
        layers,
        num_failures=options.num_failures,
        memory_limit_bytes=limit_bytes,
        min_nodes=max(1, num_stages // 2),
        max_nodes=num_stages + num_stages // 2,
        num_microbatches=num_microbatches,
        upkeep=upkeep,
    )
    partitions = tuple(template.partition for template in templates)
    return shapes_lib.Templates(partitions, predictor, options, mixes=True, uses_all=study.uses_all)
  if config.pipeline.layout == "grid":
    found, refusals = [], []
    for depth in sorted({min(math.ceil(f * num_stages), len(layers)) for f in study.depths}):
      try:
        found.append(split(depth))
      except base.InfeasibleError as error:
        refusals.append(error)
    if not found:
      raise refusals[-1]
    return shapes_lib.Templates(tuple(found), predictor, options, uses_all=False)
  if num_stages > len(layers):
    raise base.InfeasibleError(
        f"num_stages={num_stages} needs as many layers, of which there are {len(layers)}."
    )
  return shapes_lib.Templates(
      (split(num_stages),), predictor, options, max_pipelines=study.max_pipelines
  )


def choose(policies: Sequence[Policy], trace: trace_lib.Trace) -> Policy:
  """Returns the policy with the highest expected throughput; ties: the first.

  Ignores numbers of nodes seen for less than 1 % of the time, because planning
  for each takes time.
  """
  if len(policies) == 1:
    return policies[0]
  live: dict[int, float] = {}
  for start_ms, end_ms, count in trace_lib.live_spans(trace):
    live[count] = live.get(count, 0.0) + end_ms - start_ms
  usual = {n: t for n, t in live.items() if 100 * t >= trace.duration_ms}
  summary = trace_lib.summarize(trace)
  node_hours = summary["live nodes, mean"] * summary["hours"]
  expect = functools.partial(
      expected_samples_per_sec,
      live=usual or live,
      # No node may ever be alive.
      losses_per_node_hour=summary["instants of preemption"] / (node_hours or 1.0),
  )
  return max(policies, key=expect)


def expected_samples_per_sec(
    policy: Policy, *, live: Mapping[int, float], losses_per_node_hour: float
) -> float:
  """Returns the expected throughput; 0 if there are too few nodes.

  Args:
    live: Time with each number of live nodes, in any unit.
    losses_per_node_hour: Instants at which nodes are lost, per node and hour.
  """

  def ask(places: loop.Places, when: str, **change: Any) -> loop.PlacedDecision:
    return policy.answer(places, decide.Change(**change), when=when, find_zones=dict)

  starts = {n: ask(policy.empty, "boundary", joined=tuple(range(n))).places for n in live}
  trains = {n: t for n, t in live.items() if starts[n].num_training}
  if not trains:
    return 0.0
  mean = sum(n * t for n, t in trains.items()) / sum(trains.values())
  usual = starts[min(trains, key=lambda n: abs(n - mean))]
  half_step_secs, durations, lost_secs = usual.cost.secs / 2, policy.times.durations, []
  for victim in usual.layout.pipelines[0].nodes:  # The other pipelines are similar.
    answer = ask(usual, "step", lost=frozenset({victim}))
    secs = durations.detect_secs + answer.delay.secs
    secs += answer.delay.left_share * half_step_secs
    if answer.decision.rolls_back:
      secs += durations.save_every_secs / 2 + durations.save_secs
    elif answer.decision.rung == "reconfigure":
      secs += half_step_secs
    # The training time lost by a loss and a later replacement.
    again = ask(answer.places, "boundary", joined=(answer.places.num_places,))
    lost_secs.append(secs + again.delay.secs)
  rate_per_sec = losses_per_node_hour / 3600 * usual.num_training
  # Losses occur while nodes train; during a pause another costs little more.
  lost_share = rate_per_sec * sum(lost_secs) / len(lost_secs)
  samples = sum(t * starts[n].cost.num_samples / starts[n].cost.secs for n, t in trains.items())
  return samples / sum(live.values()) / (1.0 + lost_share)


# A model like GPT-2 medium, on a V100 and 10 Gbit/s for each node.
JOB: Mapping[str, Any] = {
    "pipeline.num_pipelines": 4,
    "pipeline.num_stages": 8,
    "pipeline.num_microbatches": 16,
    "pipeline.microbatch_size": 8,
    "plan.profile": "configs/sim/gpt2_medium.json",
    "cost.instance": "p3.2xlarge",
    "cost.date": "2021",  # As Bamboo used.
}


def simulate(
    trace: trace_lib.Trace,
    policy: str | Policy,
    config: Config | None = None,
    *,
    costs: Costs | None = None,
    price: prices_lib.Price | None = None,
    keep_moments: bool = False,
) -> loop.Outcome:
  """Returns the outcome of a policy on a trace.

  Args:
    trace: Also the forecast of policies that plan for one.
    policy: A name, see `recovery.policies.find`. A policy made by `make_policy` caches
      its plans, which take most of the time.
    config: Of the run; by default `JOB`.
    costs: By default those in the file that the config names.
    price: By default that of `config.cost`, or of a p3.2xlarge in 2021, which Bamboo used.
    keep_moments: Whether the outcome has the course of the run.

  Raises:
    ValueError: Options do not fit, or there are never enough nodes.
  """
  if not isinstance(policy, Policy):
    policy = make_policy(policy, trace, config, costs=costs)
  price = price or prices_lib.find_or_standard((config or Config()).cost)
  return loop.simulate(trace, policy, price, keep_moments=keep_moments)


def make_policy(
    policy: str, trace: trace_lib.Trace, config: Config | None = None, *, costs: Costs | None = None
) -> Policy:
  """Returns a policy that can be simulated repeatedly; see `simulate`."""
  config = policies_lib.apply(config or Config().changed(JOB), policies_lib.find(policy))
  costs = costs or read_costs(config)
  if costs is None:
    raise ValueError("config.plan.profile must name a file of `bamboo profile`, or give `costs`.")
  return choose(make_choices(policy, config, costs), trace)


def read_trace(*paths: str | os.PathLike[str]) -> trace_lib.Trace:
  """Returns the trace of a file, or of one file per zone."""
  return readers.read_traces(paths)


def generate_trace(*, seed: int = 0, **options: Any) -> trace_lib.Trace:
  """Returns a random trace; the options are those of `config.study.trace`."""
  return generator.generate_trace(config_lib.TraceSection(**options), seed=seed)


def list_policies() -> list[str]:
  """Returns the policy names that `simulate` accepts."""
  return sorted(policies_lib.POLICIES)
