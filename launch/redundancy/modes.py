"""Modes that take turns in the process of one stage: its commands.

A death is simulated: the process of the victim stops where it dies, and the
survivor, on its own core, does what it would do after it has been told of the
death. Nothing is committed, so that the next step finds all as it was.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import pathlib
import time
from typing import Any

import jax
import numpy as np

from bamboo_jax.plan import profile_json
from bamboo_jax.runtime.phases import replicas as replicas_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import linearize
from bamboo_jax.train import build
from launch.redundancy import barrier as barrier_lib
from launch.redundancy import deaths
from launch.redundancy import engines
from launch.redundancy import predict
from launch.redundancy import refresh


class Modes:
  """The commands of the benchmark; each returns what is answered."""

  def __init__(
      self,
      config: Any,
      task: build.Task,
      *,
      devices: Mapping[int, jax.Device],
      rank: int,
  ) -> None:
    self._config = config
    self._task = task
    self._devices = devices
    self._rank = rank
    self._options = replicas_lib.ReplicaOptions(
        refresh=config.redundancy.refresh, slots=config.redundancy.slots
    )
    self._modes: dict[str, engines.Mode] = {}
    self._step = 0
    self._batch: list[dict[str, np.ndarray]] = []
    self._barrier = barrier_lib.Barrier(devices, rank=rank)

  @property
  def commands(self) -> dict[str, Callable[..., Any]]:
    """The commands by name."""
    return {
        "refresh_link": self.refresh_link,
        "build_modes": self.build_modes,
        "feed": self.feed,
        "commit": self.commit,
        "compute": self.compute,
        "die": self.die,
        "digests": self.digests,
    }

  def refresh_link(self, bounds: str) -> dict[str, Any]:
    """Measures a refresh of all replicas; `bounds` such as 0,10,18."""
    refresh_ms = refresh.time_refresh(
        self._specs([int(b) for b in bounds.split(",")]),
        devices=self._devices,
        rank=self._rank,
        options=self._options,
        barrier=self._barrier,
    )
    return {"refresh_ms": refresh_ms}

  def build_modes(self, path: str, *names: str) -> dict[str, Any]:
    """Plans modes from the profile at `path` and compiles them."""
    options = self._config.redundancy
    profile = profile_json.from_json(pathlib.Path(path).read_text())
    plan = build.make_plan(self._config, profile)
    self._modes = engines.make_modes(
        predict.plan_modes(
            plan, names, margin=options.margin, budget=options.budget
        ),
        self._specs(plan.partition.bounds),
        devices=self._devices,
        options=self._options,
    )
    replica_bytes = {n: mode.replica_bytes() for n, mode in self._modes.items()}
    return {"replica_bytes": replica_bytes}

  def feed(self, step: str) -> dict[str, Any]:
    """Makes the batch that all modes get from now on."""
    batches = self._task.batches
    self._step = int(step)
    self._batch = [
        batches.microbatch(self._step, m)
        for m in range(batches.num_microbatches)
    ]
    return {}

  def commit(self, name: str) -> dict[str, Any]:
    """Runs a step; returns the seconds of its parts, and bytes."""
    mode = self._modes[name]
    cpu_start, start = time.process_time(), time.perf_counter()
    self._begin(mode)
    mode.engine.compute(mode.order)
    computed = self._reduce(mode)
    host_bytes = mode.node.store.host_bytes()
    length = self._config.model.options.sequence_length
    scale = 1.0 / (self._task.batches.batch_size * length)
    refresh_bytes = mode.engine.refresh(scale)
    refreshed = self._wait(mode)
    self._barrier.wait()
    voted = time.perf_counter()
    mode.engine.apply(scale)
    end = self._wait(mode)
    return {
        "compute_secs": computed - start,
        "refresh_secs": refreshed - computed,
        "vote_secs": voted - refreshed,
        "apply_secs": end - voted,
        "cpu_secs": time.process_time() - cpu_start,
        "refresh_bytes": refresh_bytes,
        "host_bytes": host_bytes,
    }

  def compute(self, name: str) -> dict[str, Any]:
    """Runs the rows of a step and forgets it."""
    mode = self._modes[name]
    start = time.perf_counter()
    self._begin(mode)
    mode.engine.compute(mode.order)
    secs = self._reduce(mode) - start
    return {"secs": secs, "sums": mode.sums()}

  def die(self, name: str, victim: str, at: str) -> dict[str, Any]:
    """Runs the rows of a step in which a node dies, and forgets it.

    Args:
      name: Mode.
      victim: Node that dies.
      at: Before which instruction of its row.

    Returns:
      When the victim died; or when the survivor had finished the rows, the time
      it took to plan them, and the sums, which must be those of `compute`.
    """
    mode = self._modes[name]
    engine, roles = mode.engine, mode.plan.roles
    death = deaths.plan_death(
        mode.plan.whole.timeline, victim=int(victim), at=int(at)
    )
    start = time.perf_counter()
    self._begin(mode)
    engine.compute(death.done)
    if self._rank == death.victim:
      return {"died_secs": self._wait(mode) - start}
    told = time.perf_counter()
    after, held = failover.fail_over(roles, engine.holdings(0), {death.victim})
    rest = linearize.linearize([mode.plan.rows.rest(0, after, held)])
    planned = time.perf_counter()
    engine.set_roles(0, owners=after.owners, shadows=after.shadows)
    engine.compute(rest)
    answer = {
        "secs": self._reduce(mode) - start,
        "plan_secs": planned - told,
        "num_passes": sum(not i.is_transfer for _, i in rest),
        "sums": mode.sums(),
    }
    engine.set_roles(0, owners=roles.owners, shadows=roles.shadows)
    return answer

  def digests(self) -> dict[str, Any]:
    """Returns the hash of each state by mode and stage."""
    return {name: mode.digests() for name, mode in self._modes.items()}

  def _begin(self, mode: engines.Mode) -> None:
    mode.engine.begin_step(
        self._step,
        lambda m, keys: {key: self._batch[m][key] for key in keys},
        num_microbatches=len(self._batch),
    )

  def _reduce(self, mode: engines.Mode) -> float:
    """Makes the sums once all passes have ended; returns the time."""
    mode.engine.reduce()
    return self._wait(mode)

  def _wait(self, mode: engines.Mode) -> float:
    """Blocks until all is done, also what is kept; returns the time."""
    mode.engine.wait()
    jax.block_until_ready(mode.node.store.arrays())
    return time.perf_counter()

  def _specs(self, bounds: Sequence[int]) -> list[spec_lib.StageSpec]:
    return [
        dataclasses.replace(self._task.whole, first=first, last=last)
        for first, last in itertools.pairwise(bounds)
    ]
