"""Speed, memory and dollars of a run on the machines of `config.plan.machine`.

The step is planned three times: with the likely share of the roofline, and with
the least and the most that published runs reach. A measured profile has one.
"""

from collections.abc import Iterator
import dataclasses
import itertools

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import machines, prices as prices_lib
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.models import units
from bamboo_jax.plan import planner, rows as rows_lib
from bamboo_jax.runtime import places
from bamboo_jax.runtime.profile import products
from bamboo_jax.training.setup import build, executors, sizes

_NUM_SHOWN = 5  # Proposals.
_PLACES = {"device": "there, too", "host": "in host memory"}


@dataclasses.dataclass(frozen=True)
class _Step:
  """A planned step on the machines of a config.

  Attributes:
    secs: Its time with redundant passes.
    overhead: Share of the passes' time that these add.
  """

  config: config_lib.Config
  plan: planner.Plan
  secs: float
  overhead: float

  @property
  def gib_per_gpu(self) -> float:
    """The largest need of a GPU, in a step or in the one after a death."""
    plan, worst = self.plan, self.plan.worst_memory
    needs = [*plan.memory, *([worst[1]] if worst else [])]
    most = max(memory.total_bytes for memory in needs)
    if plan.residuals == "device" and self.config.redundancy.runs_ahead:
      most += plan.batch.num_microbatches * max(plan.costs.residual_bytes)
    return most / sizes.num_devices(self.config) / 2**30


@dataclasses.dataclass(frozen=True)
class Forecast:
  """A run on rented machines.

  Attributes:
    step: With the likely efficiency.
    secs: Time of a step if programs reach the likely, most or least efficiency.
    unit: "tokens", or "samples" of models without a sequence.
    flops_per_step: Operations that MFU counts.
    price: Of a machine; None if no price is known.
  """

  step: _Step
  secs: tuple[float, float, float]
  unit: str
  units_per_step: int
  flops_per_step: int
  price: prices_lib.Price | None

  @property
  def num_gpus(self) -> int:
    """Number of all GPUs, with those of spares."""
    return sizes.num_nodes(self.step.config) * sizes.num_devices(self.step.config)

  @property
  def mfu(self) -> float:
    """Fraction of the peak, for 16-bit products, that the model uses."""
    peak = _machine_of(self.step.config).flops_per_sec * self.num_gpus
    return self.flops_per_step / self.secs[0] / peak

  @property
  def usd_per_hour(self) -> float:
    """Dollars per hour of all GPUs; there must be a price."""
    assert self.price is not None
    per_hour = self.price.usd_per_hour(self.step.config.cost.market)
    return per_hour / self.price.gpu_count * self.num_gpus

  def usd_per_billion(self, secs: float) -> float:
    """Returns the dollars per billion tokens if a step takes `secs`."""
    return self.usd_per_hour / 3600 * secs / self.units_per_step * 1e9


def forecast(config: config_lib.Config, task: build.Task) -> Forecast:
  """Returns the forecast of a config with `config.plan.machine`.

  Raises:
    ValueError: An option is not valid.
    base.InfeasibleError: No split of the model fits in memory.
  """
  machine = _machine_of(config)
  least, likely, most, _ = machine.efficiency
  step, short, long = (_plan_step(config, task, e) for e in (likely, most, least))
  batch, length = step.plan.batch, task.whole.model.fingerprint.get("sequence_length")
  return Forecast(
      step=step,
      secs=(step.secs, short.secs, long.secs),
      unit="tokens" if length else "samples",
      units_per_step=batch.batch_size * (length or 1),
      flops_per_step=batch.total_microbatches * products.step_flops(task.whole),
      price=_find_price(config, machine),
  )


def _machine_of(config: config_lib.Config) -> machines.Machine:
  machine = sizes.find_machine(config)
  assert machine is not None, "config.plan.machine names none."
  return machine


def render(found: Forecast) -> str:
  """Returns a forecast as text: speed, memory and dollars."""
  step, config = found.step, found.step.config
  plan, machine = step.plan, _machine_of(config)
  likely, short, long = found.secs
  speeds = [found.units_per_step / secs for secs in found.secs]
  ratio = found.mfu * likely
  times = ", ".join(
      f"{name.removesuffix('_ms')} {ms / 1e3:.3g}"
      for name, ms in dataclasses.asdict(plan.step_time).items()
      if ms
  )
  count = machine.efficiency.num_runs
  source = f"rooflines of counted operations, as {count} published runs reach"
  if plan.profile.measured:
    source = "a measured profile"
  limit = machine.memory_bytes / 2**30
  lines = [
      f"{plan.num_pipelines} pipelines x {plan.num_stages} stages x "
      f"{sizes.num_devices(config)} GPUs: {found.num_gpus} x {machine.gpu}",
      f"step: {likely:.3g} s ({short:.3g} to {long:.3g}), from {source}",
      f"speed: {speeds[0]:,.0f} {found.unit}/s ({speeds[2]:,.0f} to "
      f"{speeds[1]:,.0f}), MFU {100 * found.mfu:.0f} % "
      f"({100 * ratio / long:.0f} to {100 * ratio / short:.0f})",
      f"time: {times} s; bubble {100 * plan.timeline.mean_bubble:.0f} %, "
      f"redundant passes {100 * step.overhead:.1f} %",
      f"memory: {step.gib_per_gpu:.1f} of {limit:.1f} GiB per GPU, "
      f"{_describe_worst(plan)}; residuals of redundant passes: "
      f"{_PLACES[plan.residuals]}",
  ]
  if found.price is None:
    lines.append(f"no price of {machine.name!r}: set config.cost.prices")
    return "\n".join(lines)
  usd = [found.usd_per_billion(secs) for secs in found.secs]
  lines.append(
      f"cost: ${24 * found.usd_per_hour:,.0f} a day, ${usd[0]:,.2f} per "
      f"billion {found.unit} ({usd[1]:,.2f} to {usd[2]:,.2f}): "
      f"{found.price.render(config.cost.market)}"
  )
  return "\n".join(lines)


def propose(config: config_lib.Config, num_machines: int) -> str:
  """Returns the fastest layouts of a batch on some machines, as text.

  The batch stays that of the config, and so do the samples that a GPU computes
  at a time. Raises `base.InfeasibleError` if no layout fits.
  """
  machine = _machine_of(config)
  found, reasons = list[tuple[config_lib.Config, planner.Plan]](), []
  tasks: dict[int, build.Task] = {}
  for candidate in _candidates(config, machine, num_machines):
    size = candidate.pipeline.microbatch_size
    if size not in tasks:
      tasks[size] = build.make_task(candidate, needs_data=False)
    try:
      _check_cut(candidate, tasks[size])
      found.append((candidate, _plan(candidate, tasks[size], machine.efficiency.likely)))
    except base.InfeasibleError as error:
      reasons.append(str(error))
  if not found:
    why = reasons[0] if reasons else "the batch cannot be cut so."
    raise base.InfeasibleError(f"No layout of {num_machines} x {machine.name} trains this: {why}")
  found.sort(key=lambda pair: pair[1].step_time.total_ms)
  # Of these also the redundant passes, as `forecast` has them.
  best = [_with_redundancy(*pair) for pair in found[:_NUM_SHOWN]]
  best.sort(key=lambda step: step.secs)
  header = ("pipelines", "stages", "data", "tensor", "step s", "bubble %")
  rows: list[tuple[str, ...]] = [(*header, "sums s", "GiB")]
  for step in best:
    plan, mesh = step.plan, step.config.node.mesh
    sizes_of = (plan.num_pipelines, plan.num_stages, mesh.data, mesh.tensor)
    rows.append(
        (
            *map(str, sizes_of),
            f"{step.secs:.3g}",
            f"{100 * plan.timeline.mean_bubble:.0f}",
            f"{plan.step_time.reduce_ms / 1e3:.3g}",
            f"{step.gib_per_gpu:.1f}",
        )
    )
  fastest = best[0].config
  plans = [*(step.plan for step in best), *(plan for _, plan in found[_NUM_SHOWN:])]
  return "\n".join(
      [
          table_lib.align(rows, left=()),
          f"{len(found)} layouts fit, {len(reasons)} do not"
          + (f", such as: {reasons[-1]}" if reasons else "."),
          f"best: {_explain(plans)}:",
          _render_flags(fastest),
          render(forecast(fastest, tasks[fastest.pipeline.microbatch_size])),
      ]
  )


def _plan(config: config_lib.Config, task: build.Task, efficiency: float) -> planner.Plan:
  """Returns a plan by rows; `base.InfeasibleError` names the machine."""
  cuts = executors.find_cuts(config, task)
  profile = build.make_profile(config, task, efficiency=efficiency)
  try:
    return build.make_plan(config, profile, cuts=cuts)
  except base.InfeasibleError as error:
    machine, count = _machine_of(config), sizes.num_devices(config)
    raise base.InfeasibleError(
        f"config.plan.machine={machine.name!r} has "
        f"{machine.memory_bytes / 2**30:.1f} GiB per GPU, and a node has "
        f"{count}: {error}"
    ) from None


def _plan_step(config: config_lib.Config, task: build.Task, efficiency: float) -> _Step:
  plan = _plan(config, task, efficiency)
  if not executors.is_program(config):
    return _with_redundancy(config, plan)
  program = executors.plan_program(config, task, plan)
  overhead = program.plan.timeline.span_ms / program.plain.span_ms - 1.0
  return _Step(config, program.plan, program.plan.step_time.total_ms / 1e3, overhead)


def _with_redundancy(config: config_lib.Config, plan: planner.Plan) -> _Step:
  """Returns a step by rows with its redundant passes."""
  whole = rows_lib.RowPlanner(plan, config.redundancy).first()
  extra_ms = whole.timeline.span_ms - plan.timeline.span_ms
  secs = (plan.step_time.total_ms + extra_ms) / 1e3
  return _Step(config, plan, secs, whole.effect.overhead)


def _candidates(
    config: config_lib.Config, machine: machines.Machine, num_machines: int
) -> Iterator[config_lib.Config]:
  """Yields configs of the same batch on all GPUs of the machines."""
  pipeline = config.pipeline
  per_gpu = max(1, pipeline.microbatch_size // config.node.mesh.data)
  batch = pipeline.num_pipelines * pipeline.num_microbatches
  batch *= pipeline.microbatch_size
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
      if num_stages == 1 and config.redundancy.mode != "none":
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


def _check_cut(config: config_lib.Config, task: build.Task) -> None:
  """Raises `base.InfeasibleError` if the model cannot be cut so."""
  whole, num_stages = task.whole, config.pipeline.num_stages
  most = 1 + len(units.find_cuts(whole.names))
  if num_stages > most:
    raise base.InfeasibleError(f"{num_stages} stages of a model with {most} units.")
  try:
    mesh = config.node.mesh.to_dict()
    places.find_rules(whole.state, whole.model.name, mesh)
  except ValueError as error:
    raise base.InfeasibleError(str(error)) from error


def _explain(found: list[planner.Plan]) -> str:
  """Returns the lead of the fastest layout, and its main cause, as text."""
  if len(found) == 1:
    return "the only layout that fits"
  bubbles = [p.timeline.mean_bubble for p in found]
  spans = [p.timeline.span_ms for p in found]
  parts = {
      "waits": [b * ms for b, ms in zip(bubbles, spans, strict=True)],
      "passes": [(1 - b) * ms for b, ms in zip(bubbles, spans, strict=True)],
      "sums of gradients": [p.step_time.reduce_ms for p in found],
      "updates": [p.step_time.update_ms for p in found],
      "refresh of replicas": [p.step_time.refresh_ms for p in found],
  }
  less = {name: values[1] - values[0] for name, values in parts.items()}
  name = max(less, key=lambda part: less[part])
  best, other = (p.step_time.total_ms for p in found[:2])
  return (
      f"{100 * (other / best - 1):.1f} % faster than the next one, by "
      f"{less[name] / 1e3:.3g} s less for {name}"
  )


def _render_flags(config: config_lib.Config) -> str:
  pipeline, mesh = config.pipeline, config.node.mesh
  names = ("num_pipelines", "num_stages", "num_microbatches", "microbatch_size")
  given = {f"pipeline.{name}": getattr(pipeline, name) for name in names}
  given |= {"node.mesh.data": mesh.data, "node.mesh.tensor": mesh.tensor}
  return " ".join(f"--config.{key}={value}" for key, value in given.items())


def _describe_worst(plan: planner.Plan) -> str:
  stage = max(range(plan.num_stages), key=lambda s: plan.memory[s].total_bytes)
  worst = plan.worst_memory
  if worst and worst[1].total_bytes > plan.memory[stage].total_bytes:
    return str(worst[0])
  return f"stage {stage}"


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
