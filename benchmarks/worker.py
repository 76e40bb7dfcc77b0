"""The process of one stage of a benchmark, on one core: answers commands.

  address               returns where others reach this process
  connect ADDRESS...    tells where all stages are reached; comes first
  profile               measures the layers
  links BOUNDS          measures a transfer between stages split at 0,10,18
  refresh BOUNDS        measures a refresh of all replicas
  build PATH NAME...    plans from the profile at PATH and compiles variants,
                        which share programs: rows/lazy spmd/eager
  feed STEP             makes the batch that all variants use from now on
  run NAME              runs and commits a step of a variant
  learn NAME STRETCH    tells how much longer than planned its last step took
  digests               hashes of all states that rows hold
  difference            relative difference of parameters of programs and rows

All but the last two must be sent to all workers at once.
"""

from collections.abc import Callable, Sequence
import contextlib
import json
import os
import pathlib
import shlex
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from bamboo_jax import config as config_lib
from bamboo_jax.benchmarks import joined, variants
from bamboo_jax.plan import cost_model
from bamboo_jax.runtime import allocator
from bamboo_jax.runtime.profile import profiler
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.schedule import failover
from bamboo_jax.train.setup import build, executors

_NUM_LINK_TIMES, _NUM_REFRESH_TIMES = 100, 25


def serve(config: config_lib.Config, *, rank: int) -> None:
  """Answers commands until the input ends; then ends the process."""
  allocator.keep_freed_memory()
  with contextlib.closing(joined.Joined(config, rank=rank)) as stages:
    worker = Worker(config, stages)
    print("answer {}", flush=True)
    for line in sys.stdin:
      answer = worker.answer(*shlex.split(line))
      print(f"answer {json.dumps(answer)}", flush=True)
  os._exit(0)  # Without a goodbye to others, who are gone.


class Worker:
  """The commands, as methods by their names."""

  def __init__(self, config: config_lib.Config, stages: joined.Joined) -> None:
    self._config, self._stages = config, stages
    self._rank = stages.rank
    self._task = build.make_task(config)
    self._variants: dict[str, variants.Rows] = {}
    self._step: tuple[int, variants.Microbatches] = (0, ())

  def answer(self, command: str, *arguments: str) -> Any:
    """Returns the answer to a command, as plain values."""
    return getattr(self, f"_{command}")(*arguments)

  def _address(self) -> str:
    return self._stages.transport.address

  def _connect(self, *addresses: str) -> None:
    self._stages.connect(addresses)

  def _profile(self) -> str:
    device = self._stages.device
    profile = profiler.measure(
        self._task.whole,
        batch=self._task.batches.microbatch(0, 0),
        devices=[device],
        fingerprint=profiler.fingerprint_of(self._task.whole, device=device),
    )
    return cost_model.to_json(profile)

  def _links(self, bounds: str) -> float:
    """Sends activations back and forth; returns the ms of one transfer."""
    like = self._specs(bounds)[0].outputs
    there = self._stages.link("activation", 0, 1, like)
    back = self._stages.link("grad", 1, 0, like)
    value = self._fill(1, like)

    def exchange() -> None:
      nonlocal value
      if self._rank == 0:
        there.send(value)
        value = back.receive()
      elif self._rank == 1:
        value = there.receive()
        back.send(value)

    times_ms = [_time_ms(exchange) / 2 for _ in range(_NUM_LINK_TIMES)]
    return statistics.median(times_ms[10:])

  def _refresh(self, bounds: str) -> float:
    """Returns the ms of a refresh of all replicas, without other work."""
    ends = []
    specs = self._specs(bounds)
    shadows = failover.Roles.initial(range(len(specs))).shadows
    by_state = self._config.redundancy.refresh == "state"
    for stage, shadow in shadows.items():
      like = specs[stage].state if by_state else specs[stage].accumulator
      link = self._stages.link("refresh", stage, shadow, like)
      ends.append((stage, shadow, link, self._fill(0, like)))

    def refresh() -> None:
      for stage, shadow, link, value in ends:
        if stage == self._rank:
          link.send(value)
        if shadow == self._rank:
          link.receive()

    times_ms = []
    for _ in range(_NUM_REFRESH_TIMES):
      self._stages.wait()
      times_ms.append(_time_ms(refresh))
    return statistics.median(times_ms[5:])

  def _build(self, path: str, *names: str) -> dict[str, dict[str, Any]]:
    """Returns seconds to compile, and bytes, by variant."""
    profile = cost_model.from_json(pathlib.Path(path).read_text(encoding="utf-8-sig"))
    cuts = executors.find_cuts(self._config, self._task)
    plan = build.make_plan(self._config, profile, cuts=cuts, is_cluster=True)
    site = variants.Site(
        config=self._config,
        task=self._task,
        plan=plan,
        specs=self._specs(",".join(map(str, plan.partition.bounds))),
        stages=self._stages,
        cache=programs_lib.ProgramCache(),
    )
    built = {}
    for name in names:
      kind, mode = name.split("/")
      start = time.perf_counter()
      variant = variants.KINDS[kind](site, mode)
      secs = time.perf_counter() - start
      built[name] = {"compile_secs": secs, **variant.sizes()}
      self._variants[name] = variant
    return built

  def _run(self, name: str) -> dict[str, Any]:
    return self._variants[name].run(*self._step)

  def _learn(self, name: str, stretch: str) -> None:
    self._variants[name].learn(float(stretch))

  def _feed(self, step: str) -> None:
    batches = self._task.batches
    microbatches = range(batches.num_microbatches)
    batch = [batches.microbatch(int(step), m) for m in microbatches]
    self._step = (int(step), batch)

  def _digests(self) -> dict[str, dict[int, str]]:
    return {
        name: variant.digests()
        for name, variant in self._variants.items()
        if name.startswith("rows/")
    }

  def _difference(self) -> float:
    return max(
        program.difference(self._variants[name.replace("spmd/", "rows/")])
        for name, program in self._variants.items()
        if name.startswith("spmd/")
    )

  def _specs(self, bounds: str) -> Sequence[spec_lib.StageSpec]:
    return self._task.whole.cut([*map(int, bounds.split(","))])

  def _fill(self, number: int, like: Any) -> Any:
    value = jax.tree.map(lambda a: jnp.full(a.shape, number, a.dtype), like)
    return jax.device_put(value, self._stages.device)


def _time_ms(do: Callable[[], None]) -> float:
  start = time.perf_counter()
  do()
  return 1e3 * (time.perf_counter() - start)
