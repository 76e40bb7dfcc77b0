"""One stage of a pipeline in a process of its own, on one core.

Started by `launch.bench`, which writes commands to its standard input, one per
line, and reads a line "answer JSON" for each from its standard output:

  profile       measures the layers; to be asked of one worker at a time
  links BOUNDS  measures the links of a pipeline cut at BOUNDS, such as 0,10,18
  build PATH    plans from the profile at PATH and compiles the stage
  step N        runs step N

More commands, with which modes of redundancy and executors are compared, are in
`launch.redundancy.modes` and `launch.executors.variants`. End of input ends it.
"""

from collections.abc import Callable, Sequence
import dataclasses
import itertools
import json
import os
import statistics
import sys
import time
from typing import Any

from absl import app
from absl import flags

from launch import config_flag

_CONFIG = config_flag.define("configs/bench_peer.py", "What to run.")
_RANK = flags.DEFINE_integer("rank", None, "Stage of this worker.")
_CORE = flags.DEFINE_integer("core", None, "Core to run on.")
_PORT = flags.DEFINE_integer("port", None, "Of the coordination service.")


class Worker:
  """What the commands do; each returns what is answered."""

  def __init__(self, config: Any, *, rank: int, port: int) -> None:
    import jax

    from bamboo_jax.runtime import allocator
    from bamboo_jax.train import build

    allocator.keep_freed_memory()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        config.pipeline.num_stages,
        rank,
        coordinator_bind_address=f"127.0.0.1:{port}",
    )
    self._devices = dict(enumerate(jax.devices()))
    self._build = build
    self._config = config
    self._rank = rank
    self._task = build.make_task(config)

  def make_commands(self) -> dict[str, Callable[..., Any]]:
    """Returns the commands by name."""
    commands = {
        "profile": self.profile,
        "links": self.links,
        "build": self.build,
        "step": self.step,
    }
    if self._config.redundancy.mode != "none":
      from launch.executors import variants
      from launch.redundancy import modes

      is_spmd = self._config.pipeline.executor == "spmd"
      make = variants.Variants if is_spmd else modes.Modes
      commands |= make(
          self._config, self._task, devices=self._devices, rank=self._rank
      ).commands
    return commands

  def profile(self) -> dict[str, Any]:
    """Measures the layers on this worker's core."""
    from bamboo_jax.plan import profile_json
    from bamboo_jax.runtime.profile import profiler

    device = self._devices[self._rank]
    profile = profiler.measure(
        self._task.whole,
        batch=self._task.batches.microbatch(0, 0),
        devices=[device],
        fingerprint=profiler.fingerprint_of(self._task.whole, device=device),
    )
    return {"profile": profile_json.to_json(profile)}

  def links(self, bounds: str) -> dict[str, Any]:
    """Measures a transfer: activations back and forth, a hundred times."""
    import jax
    import jax.numpy as jnp

    from bamboo_jax.runtime.wire import link as link_lib

    like = self._specs([int(b) for b in bounds.split(",")])[0].outputs
    pair = (self._devices[0], self._devices[1])
    there = link_lib.make_link(*pair, like=like, kind="ppermute")
    back = link_lib.make_link(*pair[::-1], like=like, kind="ppermute")
    value = jax.tree.map(lambda a: jnp.ones(a.shape, a.dtype), like)
    value = jax.device_put(value, self._devices[self._rank])
    times = []
    for _ in range(100):
      start = time.perf_counter()
      if self._rank == 0:
        there.send(value)
        value = back.receive()
      elif self._rank == 1:
        value = there.receive()
        back.send(value)
      times.append(1e3 * (time.perf_counter() - start) / 2)
    return {"transfer_ms": statistics.median(times[10:])}

  def build(self, path: str) -> dict[str, Any]:
    """Compiles the stage that this worker owns, as planned."""
    from bamboo_jax.runtime import engine as engine_lib
    from bamboo_jax.runtime.stage import spec as spec_lib
    from bamboo_jax.schedule import linearize

    config = self._config.copy_and_resolve_references()
    config.plan.profile = path
    plan = self._build.make_plan(
        config, self._build.make_profile(config, self._task)
    )
    specs = self._specs(plan.partition.bounds)
    self._engine = engine_lib.Engine(
        specs, owners=plan.owners, devices=self._devices, num_shares=1
    )
    self._engine.compile(evaluate=False)
    self._engine.set_state(spec_lib.init_layers(specs[self._rank]))
    self._order = linearize.linearize(plan.timelines)
    return {"bounds": plan.partition.bounds}

  def step(self, step: str) -> dict[str, Any]:
    """Runs a step without clipping; returns the seconds of its parts."""
    engine, batches = self._engine, self._task.batches
    start = time.perf_counter()
    engine.begin_step(
        int(step),
        lambda m, keys: batches.microbatch(int(step), m, keys),
        num_microbatches=batches.num_microbatches,
    )
    engine.compute(self._order)
    engine.reduce()
    engine.wait()
    computed = time.perf_counter()
    weight = batches.batch_size * self._config.model.options.sequence_length
    loss = None
    if self._rank == len(engine.specs) - 1:
      loss = engine.loss()[0] / weight
    engine.apply(1.0 / weight)
    engine.wait()
    apply_secs = time.perf_counter() - computed
    return {
        "loss": loss,
        "compute_secs": computed - start,
        "apply_secs": apply_secs,
    }

  def _specs(self, bounds: Sequence[int]) -> list[Any]:
    whole = self._task.whole
    return [
        dataclasses.replace(whole, first=first, last=last)
        for first, last in itertools.pairwise(bounds)
    ]


def main(argv: Sequence[str]) -> None:
  """Answers commands until the input ends."""
  del argv
  os.sched_setaffinity(0, {_CORE.value})
  worker = Worker(_CONFIG.value, rank=_RANK.value, port=_PORT.value)
  commands = worker.make_commands()
  print("answer {}", flush=True)
  for line in sys.stdin:
    command, *arguments = line.split()
    answer = commands[command](*arguments)
    print(f"answer {json.dumps(answer)}", flush=True)
  os._exit(0)  # Peers are gone; a graceful goodbye would wait for them.


if __name__ == "__main__":
  app.run(main)
