"""Compiles programs ahead.

Programs belong to kinds of units. A process compiles those of all kinds of the
model on each of its places, so its nodes can take any role, now and after any
death. Programs that are already compiled cost nothing.
"""

from collections.abc import Callable, Sequence
import concurrent.futures
import functools
import itertools
import os
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib, places
from bamboo_jax.runtime.phases import replicas as replicas_lib
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.runtime.wire import ordered_sum

Job = Callable[[], Any]


def compile_all(
    engine: engine_lib.Engine,
    more: Sequence[Job] = (),
    *,
    tell: Callable[[int, int], object] = lambda num_done, num_jobs: None,
    evaluate: bool = False,
) -> None:
  """Runs the jobs of `find_jobs` and `more`, in one thread per core; blocks.

  Calls `tell` after each job. Raises the first error of a job.
  """
  pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
  jobs = [*find_jobs(engine, evaluate=evaluate), *more]
  try:
    waiting = [pool.submit(job) for job in jobs]
    for num_done, future in enumerate(concurrent.futures.as_completed(waiting), 1):
      future.result()
      tell(num_done, len(jobs))
  finally:  # An interrupt does not wait for running jobs.
    pool.shutdown(wait=False, cancel_futures=True)


def find_jobs(engine: engine_lib.Engine, *, evaluate: bool) -> list[Job]:
  """Returns the jobs that compile the programs of local nodes in any role.

  With `evaluate` those of evaluations, too.
  """
  replicas, shares = engine.replicas, engine.num_shares
  names = ["forward", "backward", "update", "norms", "zeros", "cast"]
  names += ["propose"] * (replicas.refresh == "state")  # Updates while replicas are left.
  names += ["redundant"] * replicas.runs_ahead + ["evaluate"] * evaluate
  units, model = programs_lib.find_kinds(engine.specs), engine.specs[0].model.name
  jobs: list[Job] = []
  # One place after the other: later ones load the programs of the first.
  for place in dict.fromkeys(map(engine.find_compute, engine.devices)):
    for unit in units:
      programs = engine.programs.get(unit, place)
      jobs += [functools.partial(programs.compile, name, place) for name in names]
      if replicas.has_replicas or shares > 1:  # Copies of state are compared.
        where = places.of_state(place, unit.state, model)
        for like in jax.tree.leaves(places.put_shapes(unit.state, where)):
          jobs.append(functools.partial(compile_for, replicas_lib.add_up, like))
  counts = {shares, *map(len, engine.ties)} - {1}  # Terms of sums.
  sums: list[tuple[int, base.PyTree]] = [(2, unit.accumulator) for unit in units if shares > 1]
  for copy, *_ in engine.ties:
    sums.append((2, engine.units[copy.unit].accumulator.grads[copy.layer][copy.param]))
  if engine.exchange is not None:  # Other processes may own the same.
    most = max(spec_lib.nbytes(unit.accumulator) for unit in engine.units.values()) // 4
    pieces = [jax.ShapeDtypeStruct((size,), np.float32) for size in ordered_sum.sizes(most)]
    sums += itertools.product(sorted(counts), pieces)
  for device, (count, like) in itertools.product(engine.adders(engine.devices), sums):
    term = places.put_shapes(like, places.of_any(device, like))
    jobs.append(functools.partial(compile_for, ordered_sum.add, [term] * count))
  return jobs


def compile_for(program: Any, shapes: base.PyTree) -> None:
  """Compiles a program for one argument."""
  program.lower(shapes).compile()
