"""One stage of a pipeline in a process of its own, on one core.

Started by `launch.bench`, which writes commands to its standard input, one per
line, and reads one line of JSON for each from its standard output:

  profile      measures the layers; only one worker at a time
  build BOUNDS makes the programs of the stage; BOUNDS is 0,10,18
  links N      passes N activations and gradients back and forth
  step N       runs step N

End of input ends it.
"""

from collections.abc import Callable
import contextlib
import json
import os
import sys
import time
from typing import Any

from absl import app
from absl import flags
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file("config", lock_config=True)
_RANK = flags.DEFINE_integer("rank", None, "Stage of this worker.")
_CORE = flags.DEFINE_integer("core", None, "Core to run on.")
_PORT = flags.DEFINE_integer("port", None, "Of the coordination service.")


class Worker:
  """What the commands do."""

  def __init__(self, config: Any, rank: int, port: int) -> None:
    import jax

    from bamboo_jax.train import build

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}", config.pipeline.num_stages, rank
    )
    self._build = build
    self._config = config
    self._rank = rank
    self._task = build.make_task(config)

  def profile(self) -> dict[str, Any]:
    """Measures the layers on this worker's core."""
    import jax

    from bamboo_jax.plan import profile_json
    from bamboo_jax.runtime import profiler

    profile = profiler.measure(
        self._task.whole, devices=jax.local_devices(), fingerprint={}
    )
    return {"profile": profile_json.to_json(profile)}

  def build(self, bounds: str) -> dict[str, Any]:
    """Compiles the stage that this worker owns."""
    import dataclasses

    import jax

    from bamboo_jax.runtime import engine as engine_lib
    from bamboo_jax.runtime import spec as spec_lib
    from bamboo_jax.schedule import timeline

    cuts = [int(b) for b in bounds.split(",")]
    specs = [
        dataclasses.replace(self._task.whole, first=first, last=last)
        for first, last in zip(cuts, cuts[1:], strict=False)
    ]
    owners = [range(len(specs))]
    self._engine = engine_lib.Engine(
        specs, owners=owners, devices=dict(enumerate(jax.devices())), num_shares=1
    )
    self._engine.compile(evaluate=False)
    mine = specs[self._rank]
    self._engine.set_state(spec_lib.init_layers(mine))
    profile = self._build.make_profile(self._config, self._task)
    plan = self._build.make_plan(self._config, profile)
    assert plan.partition.bounds == tuple(cuts), (plan.partition, cuts)
    self._order = timeline.linearize(plan.timelines)
    return {}

  def step(self, step: str) -> dict[str, Any]:
    """Runs a step; returns the seconds of its parts."""
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
    loss = None
    if self._rank == len(engine.specs) - 1:
      loss, weight = engine.loss()
      loss /= weight
    else:
      weight = batches.batch_size * self._task.sequence_length
    engine.apply(1.0 / weight)
    engine.wait()
    end = time.perf_counter()
    return {
        "loss": loss,
        "compute_secs": computed - start,
        "apply_secs": end - computed,
    }
