"""The process of one stage of a benchmark, on one core: answers commands.

  profile               measures the layers
  links BOUNDS          measures a transfer of a pipeline cut at BOUNDS: 0,10,18
  refresh BOUNDS        measures a refresh of all replicas
  build PATH NAME...    plans from the profile at PATH and compiles variants,
                        which share programs: rows/lazy spmd/eager
  feed STEP             makes the batch that all variants get from now on
  run NAME              runs and commits a step of a variant
  compute NAME          runs the rows of a step and forgets them
  die NAME NODE AT      the same, and a node dies before an instruction
  digests               hashes of all states that rows hold
  difference            how far parameters of programs are from those of rows

All but the last two are to be asked of all workers at once.
"""

from collections.abc import Callable, Sequence
import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from bamboo_jax.bench import variants
from bamboo_jax.plan import profile_json
from bamboo_jax.runtime import allocator
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.profile import profiler
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import link as link_lib
from bamboo_jax.schedule import failover
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import build_program

_NUM_LINK_TIMES, _NUM_REFRESH_TIMES = 100, 25


def serve(config: ml_collections.ConfigDict, *, rank: int, port: int) -> None:
  """Answers commands until the input ends; then ends the process."""
  allocator.keep_freed_memory()
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  address = f"127.0.0.1:{port}"
  jax.distributed.initialize(
      address,
      config.pipeline.num_stages,
      rank,
      coordinator_bind_address=address,
  )
  worker = Worker(config, rank=rank)
  print("answer {}", flush=True)
  for line in sys.stdin:
    command, *arguments = line.split()
    answer = worker.commands[command](*arguments)
    print(f"answer {json.dumps(answer)}", flush=True)
  os._exit(0)  # The others are gone; a graceful goodbye would wait for them.


class Worker:
  """The commands; each returns its answer."""

  def __init__(self, config: ml_collections.ConfigDict, *, rank: int) -> None:
    self._config = config
    self._rank = rank
    self._devices = dict(enumerate(jax.devices()))
    self._task = build.make_task(config)
    self._barrier = variants.Barrier(self._devices, rank=rank)
    self._variants: dict[str, variants.Variant] = {}
    self._step = 0
    self._batch: variants.Microbatches = ()
    self.commands: dict[str, Callable[..., Any]] = {
        "profile": self._profile,
        "links": self._time_link,
        "refresh": self._time_refresh,
        "build": self._build,
        "feed": self._feed,
        "run": lambda name: self._variants[name].run(self._step, self._batch),
        "compute": lambda name: self._variants[name].compute(
            self._step, self._batch
        ),
        "die": lambda name, victim, at: self._variants[name].die(
            self._step, self._batch, victim=int(victim), at=int(at)
        ),
        "digests": lambda: {n: v.digests() for n, v in self._rows.items()},
        "difference": self._difference,
    }

  @property
  def _rows(self) -> dict[str, variants.Rows]:
    return {n: v for n, v in self._variants.items() if n.startswith("rows/")}

  def _profile(self) -> str:
    device = self._devices[self._rank]
    profile = profiler.measure(
        self._task.whole,
        batch=self._task.batches.microbatch(0, 0),
        devices=[device],
        fingerprint=profiler.fingerprint_of(self._task.whole, device=device),
    )
    return profile_json.to_json(profile)

  def _time_link(self, bounds: str) -> float:
    """Sends activations back and forth; returns the ms of one transfer."""
    like = self._specs(bounds)[0].outputs
    pair = (self._devices[0], self._devices[1])
    there = link_lib.make_link(*pair, like=like, kind="ppermute")
    back = link_lib.make_link(*pair[::-1], like=like, kind="ppermute")
    value = jax.tree.map(lambda a: jnp.ones(a.shape, a.dtype), like)
    value = jax.device_put(value, self._devices[self._rank])
    times_ms = []
    for _ in range(_NUM_LINK_TIMES):
      start = time.perf_counter()
      if self._rank == 0:
        there.send(value)
        value = back.receive()
      elif self._rank == 1:
        value = there.receive()
        back.send(value)
      times_ms.append(1e3 * (time.perf_counter() - start) / 2)
    return statistics.median(times_ms[10:])

  def _time_refresh(self, bounds: str) -> float:
    """Returns the ms of a refresh of all replicas with nothing else to do."""
    ends = []
    specs = self._specs(bounds)
    shadows = failover.Roles.initial(range(len(specs))).shadows
    by_state = self._config.redundancy.refresh == "state"
    for stage, shadow in shadows.items():
      spec = specs[stage]
      like = spec.state if by_state else spec.accumulator
      link = link_lib.make_link(
          self._devices[stage], self._devices[shadow], like=like, kind="auto"
      )
      value = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), like)
      value = jax.device_put(value, self._devices[self._rank])
      ends.append((stage, shadow, link, value))
    times_ms = []
    for _ in range(_NUM_REFRESH_TIMES):
      self._barrier.wait()
      start = time.perf_counter()
      for stage, shadow, link, value in ends:
        if stage == self._rank:
          link.send(value)
        if shadow == self._rank:
          link.receive()
      times_ms.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times_ms[5:])

  def _build(self, path: str, *names: str) -> dict[str, dict[str, Any]]:
    """Returns seconds to compile, and bytes, by variant."""
    profile = profile_json.from_json(pathlib.Path(path).read_text())
    cuts = None
    if self._config.pipeline.executor == "spmd":
      cuts = build_program.find_cuts(self._config, self._task)
    plan = build.make_plan(self._config, profile, cuts=cuts, is_cluster=True)
    site = variants.Site(
        config=self._config,
        task=self._task,
        plan=plan,
        specs=self._specs(",".join(map(str, plan.partition.bounds))),
        devices=self._devices,
        rank=self._rank,
        barrier=self._barrier,
        cache=program_cache.ProgramCache(),
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

  def _feed(self, step: str) -> None:
    batches = self._task.batches
    self._step = int(step)
    self._batch = [
        batches.microbatch(self._step, m)
        for m in range(batches.num_microbatches)
    ]

  def _difference(self) -> float:
    return max(
        program.difference(self._variants[name.replace("spmd/", "rows/")])
        for name, program in self._variants.items()
        if name.startswith("spmd/")
    )

  def _specs(self, bounds: str) -> Sequence[spec_lib.StageSpec]:
    whole = self._task.whole
    return [
        dataclasses.replace(whole, first=first, last=last)
        for first, last in itertools.pairwise(map(int, bounds.split(",")))
    ]
