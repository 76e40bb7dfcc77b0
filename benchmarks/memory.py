"""Predicted against measured memory of nodes on virtual devices.

python -m bamboo_jax.benchmarks.memory [--config=bench_memory]

The measurement of a program is the sum of the arrays on its device before it
runs (all live arrays of JAX, each buffer once), its results that are not
donated buffers, and XLA's temporary memory (`temp_size`). The peak of a node is
the largest sum in a step. Arrays in host memory, and temporary buffers of
transfers, do not count.
"""

import argparse
import collections
from collections.abc import Callable, Iterable, Sequence
import dataclasses
import functools
import gc
from typing import Any

import jax

from bamboo_jax import config as config_lib
from bamboo_jax.cli import config_flag
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.plan import memory as memory_lib
from bamboo_jax.runtime import devices as devices_lib, engine as engine_lib
from bamboo_jax.runtime.phases import reduce, update
from bamboo_jax.runtime.profile import profiler
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.schedule import failover, timeline as timeline_lib
from bamboo_jax.training.setup import accept, build

# The measured cases, as changes to the config.
_MODE, _PIPELINES = "redundancy.mode", "pipeline.num_pipelines"
CASES: tuple[dict[str, Any], ...] = (
    {_MODE: "none"},
    {_MODE: "lazy"},
    {_MODE: "lazy", "redundancy.refresh": "state"},
    {_MODE: "lazy", "redundancy.slots": "host"},
    {_MODE: "eager"},
    {_MODE: "none", _PIPELINES: 2},
    {_MODE: "lazy", _PIPELINES: 2},
    {_MODE: "eager", _PIPELINES: 2},
)
_HOST = "pinned_host"


class Meter:
  """Measures programs while it is on.

  Attributes:
    peaks: By device, the most bytes; None while it is off.
  """

  peaks: dict[jax.Device, int] | None = None

  def _note(self, device: jax.Device, num_bytes: int) -> None:
    self.peaks[device] = max(self.peaks.get(device, 0), num_bytes)

  def sample(self) -> None:
    """Measures between two programs."""
    if self.peaks is not None:
      for device, now in _sum_sizes(jax.live_arrays()).items():
        self._note(device, now)

  def watch(
      self,
      program: Callable[..., Any],
      compiled: Callable[[jax.Device], jax.stages.Compiled | None],
  ) -> Callable[..., Any]:
    """Wraps `program` so that every call is measured; `compiled` finds it for a device."""

    def run(*args: Any) -> Any:
      (device,) = jax.tree.leaves(args)[0].devices()
      found = compiled(device)
      if self.peaks is None or found is None:
        return program(*args)
      analysis, before = found.memory_analysis(), _sum_sizes(jax.live_arrays())
      results = program(*args)
      made = _sum_sizes(jax.tree.leaves(results))[device]
      beside = analysis.temp_size_in_bytes - analysis.alias_size_in_bytes
      self._note(device, before[device] + made + beside)
      return results

    return run


def _sum_sizes(arrays: Iterable[Any]) -> collections.Counter[jax.Device]:
  """Returns the bytes in device memory; counts shared buffers once."""
  sizes = {}
  for array in arrays:
    if array.is_deleted() or array.sharding.memory_kind == _HOST:
      continue
    parts = [array]
    if len(array.sharding.device_set) > 1:
      parts = [shard.data for shard in array.addressable_shards]
    for part in parts:
      (device,) = part.sharding.device_set
      sizes[device, part.unsafe_buffer_pointer()] = part.nbytes
  total = collections.Counter()
  for (device, _), num_bytes in sizes.items():
    total[device] += num_bytes
  return total


_NAMES = ("forward", "redundant", "backward", "update", "propose", "norms", "zeros", "cast")


class _Watched:
  """The programs of a kind of unit, with measured calls."""

  def __init__(self, programs: programs_lib.UnitPrograms, meter: Meter) -> None:
    for name in _NAMES:
      compiled = functools.partial(programs.compile, name)
      setattr(self, name, meter.watch(getattr(programs, name), compiled))


class _Cache(programs_lib.ProgramCache):

  def __init__(self, meter: Meter) -> None:
    super().__init__()
    self._meter = meter
    self._watched = {}

  def get(self, unit: spec_lib.StageSpec, place: Any = None) -> _Watched:
    programs = super().get(unit, place)
    if programs not in self._watched:
      self._watched[programs] = _Watched(programs, self._meter)
    return self._watched[programs]


@dataclasses.dataclass(frozen=True)
class Result:
  """Bytes of a node, in a step or in the one after a death."""

  case: str
  who: str
  predicted: memory_lib.NodeMemory
  measured_bytes: int

  @property
  def ratio(self) -> float:
    return self.predicted.total_bytes / self.measured_bytes


def compare(config: config_lib.Config) -> None:
  most = max(case.get(_PIPELINES, 1) for case in CASES)
  num_devices = most * config.pipeline.num_stages
  devices_lib.use_virtual_devices(num_devices, distinct=True)
  ratios = []
  for case in CASES:
    changed = config.changed(case)
    results = _measure(changed, " ".join(map(str, case.values())))
    gc.collect()  # The arrays of an engine are in reference cycles.
    ratios += [r.ratio for r in results]
    print(render(results), flush=True)
  worst = max(ratios, key=lambda ratio: abs(ratio - 1.0))
  print(f"worst_ratio={worst:.3f}")


def render(results: Iterable[Result]) -> str:
  rows = [("case", "who", "phase", "predicted MiB", "measured MiB", "ratio")]
  for r in results:
    phases = r.predicted.phases
    sizes = (r.predicted.total_bytes, r.measured_bytes)
    phase, mibs = max(phases, key=phases.get), map(memory_lib.format_mib, sizes)
    rows.append((r.case, r.who, phase, *mibs, f"{r.ratio:.3f}"))
  return table_lib.align(rows, left={0, 1, 2})


def _measure(config: config_lib.Config, name: str) -> list[Result]:
  """Returns the results of a step, and of one after the worst death."""
  task = build.make_task(config)
  profile = profiler.measure(
      task.whole,
      batch=task.batches.microbatch(0, 0),
      device=jax.devices()[0],
      fingerprint={},
      num_repeats=1,
  )
  plan = build.make_plan(config, profile)
  meter = Meter()
  task = dataclasses.replace(task, programs=_Cache(meter))
  engine = build.make_engine(config, task, plan)
  roles = [plan.pipeline(p).roles for p in range(plan.num_pipelines)]
  engine.set_pipelines(roles, engine.lines)
  engine.set_state(spec_lib.init_layers(task.whole))

  def run(step: int) -> dict[jax.Device, int]:
    """Measures a step, after another has made all links."""
    ways = [(p, *line) for p, line in enumerate(engine.lines)]
    lines = plan.lines(ways, [plan.partition] * len(roles))
    whole = [plan.whole(line, roles[line.pipeline].shadows).timeline for line in lines]
    order, meter.peaks = timeline_lib.linearize(whole), None
    _run_step(engine, task, step, order, meter)
    meter.peaks = {}
    _run_step(engine, task, step, order, meter)
    return meter.peaks

  peaks = run(0)
  results = [
      Result(name, f"node {s}", memory, peaks[engine.devices[s]])
      for s, memory in enumerate(plan.memory)
  ]
  if plan.worst_memory is not None:
    duty, memory = plan.worst_memory
    roles[0] = _die(engine, roles[0], duty.victim)
    peaks = run(1)
    peak = peaks[engine.devices[duty.node]]
    results.append(Result(name, str(duty), memory, peak))
  return results


def _run_step(
    engine: engine_lib.Engine,
    task: build.Task,
    step: int,
    order: Sequence[tuple[int, Any]],
    meter: Meter,
) -> None:
  batches = task.batches
  engine.begin_step(
      step,
      lambda m, keys: batches.microbatch(step, m, keys),
      num_microbatches=batches.num_microbatches,
  )
  for node, instruction in order:
    engine.nodes[node].run(instruction)
  reduce.tie(engine)
  reduce.reduce(engine)
  update.refresh(engine, 1e-3)
  engine.wait()
  meter.sample()
  update.apply(engine, 1e-3)
  engine.wait()


def _die(engine: engine_lib.Engine, roles: failover.Roles, victim: int) -> failover.Roles:
  """Kills a node of the first pipeline, and restores the replicas it held."""
  engine.kill(victim)
  after, _ = failover.fail_over(roles, {}, [victim])
  former, after = after, failover.Roles.initial(after.owners)
  for stage, shadow in after.shadows.items():
    if stage not in former.shadows:
      engine.load_programs(shadow, stage)
      engine.nodes[shadow].put_state(engine.nodes[after.owners[stage]].layers_of(stage))
  (_, shares), *lines = engine.lines
  engine.set_pipelines([after, *engine.roles[1:]], [(after.owners, shares), *lines])
  return after


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--config", default="bench_memory")
  compare(accept.accept(config_flag.load(parser.parse_args().config)))


if __name__ == "__main__":
  main()
