"""Measures what it takes to bring all replicas up to date."""

from collections.abc import Mapping, Sequence
import statistics
import time

import jax
import jax.numpy as jnp

from bamboo_jax.runtime.phases import replicas as replicas_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import link as link_lib
from bamboo_jax.schedule import failover
from launch.redundancy import barrier as barrier_lib

_NUM_REPEATS, _NUM_WARMUP = 20, 5


def time_refresh(
    specs: Sequence[spec_lib.StageSpec],
    *,
    devices: Mapping[int, jax.Device],
    rank: int,
    options: replicas_lib.ReplicaOptions,
    barrier: barrier_lib.Barrier,
) -> float:
  """Returns the median time of a refresh with nothing else to do, in ms.

  All processes must call this at the same time. They make transfers in the
  order of stages, which is one global order.

  Args:
    specs: One entry per stage.
    devices: The device of each node; node `s` owns stage `s`.
    rank: The node of this process.
    options: What is sent.
    barrier: Of all processes.
  """
  ends = []
  shadows = failover.Roles.initial(range(len(specs))).shadows
  for stage, shadow in shadows.items():
    spec = specs[stage]
    like = spec.state if options.refresh == "state" else spec.accumulator
    link = link_lib.make_link(
        devices[stage], devices[shadow], like=like, kind="auto"
    )
    value = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), like)
    ends.append((stage, shadow, link, jax.device_put(value, devices[rank])))
  times_ms = []
  for _ in range(_NUM_WARMUP + _NUM_REPEATS):
    barrier.wait()
    start = time.perf_counter()
    for stage, shadow, link, value in ends:
      if stage == rank:
        link.send(value)
      if shadow == rank:
        link.receive()
    times_ms.append(1e3 * (time.perf_counter() - start))
  return statistics.median(times_ms[_NUM_WARMUP:])
