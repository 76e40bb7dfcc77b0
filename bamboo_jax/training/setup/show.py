"""The plan of a config as text, for either executor.

With `config.plan.machine` it is speed, memory and dollars on rented machines: the step is
planned three times, with the likely share of the roofline, and with the least and the most
that published runs reach. A measured profile has one.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
from typing import NamedTuple

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import machines, prices as prices_lib
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.plan import planner, render
from bamboo_jax.recovery import placement
from bamboo_jax.runtime import places
from bamboo_jax.runtime.profile import products
from bamboo_jax.schedule import redundancy, timeline as timeline_lib
from bamboo_jax.training.setup import build, sizes

_NUM_SHOWN = 5  # Proposals.
_PLACES = {"device": "there, too", "host": "in host memory"}


@dataclasses.dataclass(frozen=True, repr=False)
class PlannedRun:
  """The plan of a run; prints as the text of `bamboo plan`.

  Attributes:
    plan: Partition, batch, memory and predicted times; those of its step, and its
      timeline, have redundant passes.
    text: Output of `bamboo plan`.
    details: What `--verbose` adds: the whole plan, if `config.plan.machine` is
      set; else "", as `text` has it.
  """

  plan: planner.Plan
  text: str
  details: str = ""

  @property
  def timeline(self) -> timeline_lib.Timeline:
    """A step of pipeline 0."""
    return self.plan.timeline

  def __repr__(self) -> str:
    return self.text


class _Step(NamedTuple):
  """A step with its redundant passes.

  Attributes:
    plan: Its times and its timeline have those passes.
    overhead: Share of the passes' time that they add.
    details: Lines on the step.
  """

  config: config_lib.Config
  plan: planner.Plan
  overhead: float
  details: tuple[str, ...]

  @property
  def gib_per_gpu(self) -> float:
    """The largest need of a GPU, in a step or in the one after a death."""
    plan, (_, most) = self.plan, _find_worst(self.plan)
    if plan.residuals == "device" and self.config.redundancy.runs_ahead:
      most += plan.batch.num_microbatches * max(plan.costs.residual_bytes)
    return most / sizes.num_devices(self.config) / 2**30


def make_plan(config: config_lib.Config, zones: Sequence[str] = ()) -> PlannedRun:
  """Returns the plan of a config; `ValueError` if it does not fit together.

  With `zones`, which nodes have in turn, it also tells what crosses between regions.
  """
  _check_zones(config, zones)
  task = build.make_task(config, needs_data=False)
  head = f"{sizes.describe_batch(config)}\n"
  if config.plan.machine is not None:  # Fails with a better message.
    head += forecast(config, task)
  plan, templates = build.plan_run(config, task, build.make_profile(config, task))
  lines = [
      f"template of {partition.num_stages} nodes: layers {partition.bounds}, up to "
      f"{max(memory_bytes) / 2**20:.2f} MiB without replicas"
      for partition, memory_bytes in templates
  ]
  if zones:
    # With the nodes placed as at a start.
    nodes = base.nodes(sizes.num_nodes(config) - config.redundancy.spares)
    zone_of = {node: zones[node % len(zones)] for node in nodes}
    rules = build.make_rules(config, plan, templates).among(zone_of)
    crossing = rules.predictor.describe_crossing(rules.planner.fresh(nodes, zone_of))
    head = f"{head.rstrip()}\n{crossing or 'between regions: nothing crosses'}"
    head += "\n" * (config.plan.machine is None)
  step = _with_redundancy(config, task, plan)
  text = "\n".join([*lines, render.render_plan(step.plan), *step.details])
  if config.plan.machine is None:
    return PlannedRun(step.plan, head + text)
  return PlannedRun(step.plan, head, text)


def _check_zones(config: config_lib.Config, zones: Sequence[str]) -> None:
  for zone in zones:
    placement.check_zone(zone)
  regions = {*map(placement.region_of, zones)}
  if len(regions) == 1:
    raise ValueError(f"--zones must be of several regions, such as us/a,eu/a, got {zones}.")
  if regions and config.plan.region_link is None:
    raise ValueError(
        "--zones needs the link between regions: config.plan.region_latency_ms and "
        "config.plan.region_mbits."
    )


def _with_redundancy(config: config_lib.Config, task: build.Task, plan: planner.Plan) -> _Step:
  after, step = build.predict_step(config, task, plan)
  timeline = after.timeline
  grid = timeline_lib.render_grid(timeline)
  if isinstance(step, build.ProgramPlan):
    overhead = timeline.span_ms / step.plain.span_ms - 1.0
    return _Step(config, after, overhead, (f"\nticks of pipeline 0:\n{grid}", step.describe()))
  details = [f"\nrows of pipeline 0:\n{grid}"]
  effect = redundancy.StepFilling([step]).predicted
  if config.redundancy.has_replicas:
    details.append(render.render_redundancy(plan, step, effect))
  return _Step(config, after, effect.overhead, tuple(details))


def _machine_of(config: config_lib.Config) -> machines.Machine:
  machine = sizes.find_machine(config)
  assert machine is not None, "config.plan.machine names none."
  return machine


def _plan(config: config_lib.Config, task: build.Task, efficiency: float) -> planner.Plan:
  """Returns a plan without redundant passes; `base.InfeasibleError` names the machine."""
  profile = build.make_profile(config, task, efficiency=efficiency)
  try:
    return build.plan_run(config, task, profile)[0]
  except base.InfeasibleError as error:
    machine, count = _machine_of(config), sizes.num_devices(config)
    raise base.InfeasibleError(
        f"config.plan.machine={machine.name!r}, with nodes of {count} x {machine.gpu}: {error}"
    ) from None


def forecast(config: config_lib.Config, task: build.Task) -> str:
  """Returns speed, memory and dollars of a config with `config.plan.machine`, as text.

  Raises:
    ValueError: An option is not valid.
    base.InfeasibleError: No split of the model fits in memory.
  """
  machine, per_node = _machine_of(config), sizes.num_devices(config)
  least, likely, most, num_runs = machine.efficiency
  steps = [
      _with_redundancy(config, task, _plan(config, task, share)) for share in (likely, most, least)
  ]
  plan, num_gpus = steps[0].plan, sizes.num_nodes(config) * per_node  # With those of spares.
  # A model without a sequence counts samples.
  length = task.whole.model.fingerprint.get("sequence_length")
  unit, num_units = "tokens" if length else "samples", plan.batch.batch_size * (length or 1)
  secs = [step.plan.step_time.total_ms / 1e3 for step in steps]
  speeds = [num_units / each for each in secs]
  flops = plan.batch.total_microbatches * products.step_flops(task.whole)
  # The fraction of the peak, for 16-bit products, that the model uses.
  mfu = [flops / (each * machine.flops_per_sec * num_gpus) for each in secs]
  times = ", ".join(
      f"{name.removesuffix('_ms')} {ms / 1e3:.3g}"
      for name, ms in dataclasses.asdict(plan.step_time).items()
      if ms
  )
  source = f"rooflines of counted operations, as {num_runs} published runs reach"
  if plan.profile.measured:
    source = "a measured profile"
  lines = [
      f"{plan.num_pipelines} pipelines x {plan.num_stages} stages x "
      f"{per_node} GPUs: {num_gpus} x {machine.gpu}",
      f"step: {secs[0]:.3g} s ({secs[1]:.3g} to {secs[2]:.3g}), from {source}",
      f"speed: {speeds[0]:,.0f} {unit}/s ({speeds[2]:,.0f} to {speeds[1]:,.0f}), "
      f"MFU {100 * mfu[0]:.0f} % ({100 * mfu[2]:.0f} to {100 * mfu[1]:.0f})",
      f"time: {times} s; bubble {100 * plan.timeline.mean_bubble:.0f} %, "
      f"redundant passes {100 * steps[0].overhead:.1f} %",
      f"memory: {steps[0].gib_per_gpu:.1f} of {machine.memory_bytes / 2**30:.1f} GiB per GPU, "
      f"{_find_worst(plan)[0]}; residuals of redundant passes: {_PLACES[plan.residuals]}",
  ]
  if (price := _find_price(config, machine)) is None:
    lines.append(f"no price of {machine.name!r}: set config.cost.prices")
    return "\n".join(lines)
  market = config.cost.market
  per_hour = price.usd_per_hour(market) / price.gpu_count * num_gpus
  usd = [per_hour / 3600 / speed * 1e9 for speed in speeds]
  lines.append(
      f"cost: ${24 * per_hour:,.0f} a day, ${usd[0]:,.2f} per billion {unit} "
      f"({usd[1]:,.2f} to {usd[2]:,.2f}): {price.render(market)}"
  )
  return "\n".join(lines)


def propose(config: config_lib.Config, num_machines: int) -> str:
  """Returns the fastest layouts of a batch on some machines, as text.

  The batch stays that of the config, and so do the samples that a GPU computes
  at a time. Raises `base.InfeasibleError` if no layout fits.
  """
  machine = _machine_of(config)
  found, reasons = list[tuple[config_lib.Config, build.Task, planner.Plan]](), []
  tasks: dict[int, build.Task] = {}
  for candidate in _candidates(config, machine, num_machines):
    size = candidate.pipeline.microbatch_size
    if size not in tasks:
      tasks[size] = build.make_task(candidate, needs_data=False)
    try:
      whole, mesh = tasks[size].whole, candidate.node.mesh.to_dict()
      places.find_rules(whole.state, whole.model.name, mesh)
      plan = _plan(candidate, tasks[size], machine.efficiency.likely)
      found.append((candidate, tasks[size], plan))
    except ValueError as error:  # It cannot be cut so, or does not fit.
      reasons.append(str(error))
  if not found:
    why = reasons[0] if reasons else "the batch cannot be cut so."
    raise base.InfeasibleError(f"No layout of {num_machines} x {machine.name} trains this: {why}")
  total_ms = lambda plan: plan.step_time.total_ms
  found.sort(key=lambda each: total_ms(each[-1]))
  # Of these also the redundant passes, as `forecast` has them.
  best = [_with_redundancy(*each) for each in found[:_NUM_SHOWN]]
  best.sort(key=lambda step: total_ms(step.plan))
  header = ("pipelines", "stages", "data", "tensor", "step s", "bubble %")
  rows: list[tuple[str, ...]] = [(*header, "sums s", "GiB")]
  for step in best:
    plan, mesh = step.plan, step.config.node.mesh
    sizes_of = (plan.num_pipelines, plan.num_stages, mesh.data, mesh.tensor)
    rows.append(
        (
            *map(str, sizes_of),
            f"{total_ms(plan) / 1e3:.3g}",
            f"{100 * plan.timeline.mean_bubble:.0f}",
            f"{plan.step_time.reduce_ms / 1e3:.3g}",
            f"{step.gib_per_gpu:.1f}",
        )
    )
  fastest = best[0].config
  pipeline, mesh = fastest.pipeline, fastest.node.mesh
  names = ("num_pipelines", "num_stages", "num_microbatches", "microbatch_size")
  given = {f"pipeline.{name}": getattr(pipeline, name) for name in names}
  given |= {"node.mesh.data": mesh.data, "node.mesh.tensor": mesh.tensor}
  return "\n".join(
      [
          table_lib.align(rows, left=()),
          f"{len(found)} layouts fit, {len(reasons)} do not"
          + (f", such as: {reasons[-1]}" if reasons else "."),
          f"best: {_explain([step.plan for step in best])}:",
          " ".join(f"--config.{key}={value}" for key, value in given.items()),
          forecast(fastest, tasks[fastest.pipeline.microbatch_size]),
      ]
  )


def _candidates(
    config: config_lib.Config, machine: machines.Machine, num_machines: int
) -> Iterator[config_lib.Config]:
  """Yields configs of the same batch on all GPUs of the machines."""
  pipeline = config.pipeline
  per_gpu = max(1, pipeline.microbatch_size // config.node.mesh.data)
  batch = pipeline.total_microbatches * pipeline.microbatch_size
  divisors = [n for n in range(1, machine.num_gpus + 1) if machine.num_gpus % n == 0]
  for data, tensor in itertools.product(divisors, divisors):
    if machine.num_gpus % (data * tensor):
      continue
    num_nodes = num_machines * machine.num_gpus // (data * tensor)
    for num_pipelines in range(1, num_nodes + 1):
      size = per_gpu * data
      if num_nodes % num_pipelines or batch % (num_pipelines * size):
        continue
      num_stages = num_nodes // num_pipelines
      if num_stages == 1 and config.redundancy.has_replicas:
        continue
      yield config.changed(
          {
              "node.mesh.data": data,
              "node.mesh.tensor": tensor,
              "pipeline.num_pipelines": num_pipelines,
              "pipeline.num_stages": num_stages,
              "pipeline.microbatch_size": size,
              "pipeline.num_microbatches": batch // (num_pipelines * size),
              "pipeline.num_shares": None,
              "redundancy.spares": 0,
          }
      )


def _explain(found: list[planner.Plan]) -> str:
  """Returns the lead of the fastest layout, and its main cause, as text."""
  if len(found) == 1:
    return "the only layout that fits"
  best, other = (
      {
          "waits": plan.timeline.mean_bubble * plan.timeline.span_ms,
          "passes": (1 - plan.timeline.mean_bubble) * plan.timeline.span_ms,
          "sums of gradients": plan.step_time.reduce_ms,
          "updates": plan.step_time.update_ms,
          "refresh of replicas": plan.step_time.refresh_ms,
      }
      for plan in found[:2]
  )
  name = max(best, key=lambda part: other[part] - best[part])
  lead = found[1].step_time.total_ms / found[0].step_time.total_ms - 1
  less_secs = (other[name] - best[name]) / 1e3
  return f"{100 * lead:.1f} % faster than the next one, by {less_secs:.3g} s less for {name}"


def _find_worst(plan: planner.Plan) -> tuple[str, int]:
  """Returns where a node needs most memory, in a step or in the one after a death, and that."""
  needs = [(f"stage {s}", memory.total_bytes) for s, memory in enumerate(plan.memory)]
  if worst := plan.worst_memory:
    needs.append((f"{worst[0]}", worst[1].total_bytes))
  return max(needs, key=lambda need: need[1])


def _find_price(config: config_lib.Config, machine: machines.Machine) -> prices_lib.Price | None:
  """Returns the price of the machine; of GPUs, the least per GPU."""
  cost = config.cost
  if cost.instance is not None:
    return sizes.find_price(config)
  listed = [
      price
      for price in prices_lib.load_prices(cost.prices or prices_lib.DEFAULT_PATH)
      if (price.instance if machine.is_instance else price.gpu)
      == (machine.name if machine.is_instance else machine.gpu)
      and getattr(price, f"{cost.market}_usd_per_hour") is not None
  ]
  per_gpu = lambda price: price.usd_per_hour(cost.market) / price.gpu_count
  return min(listed, key=per_gpu, default=None)
