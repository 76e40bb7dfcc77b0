"""Compiles programs ahead.

Programs belong to kinds of units. A process compiles those of all kinds of the
model on each of its places, so its nodes can take any role, now and after any
death. Programs that are already compiled cost nothing.
"""

from collections.abc import Callable
import concurrent.futures
import functools
import os
from typing import Any

import jax

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import fingerprint, reduce
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.runtime.wire import ordered_sum

Job = Callable[[], Any]
# The jobs of an executor for some lines, see `executor.Executor.jobs`.
MoreJobs = Callable[[engine_lib.Lines], list[Job]]
_NO_MORE: MoreJobs = lambda lines: []


def compile_all(
    engine: engine_lib.Engine,
    more: MoreJobs = _NO_MORE,
    *,
    tell: Callable[[int, int], object] = lambda num_done, num_jobs: None,
    evaluate: bool = False,
) -> None:
  """Runs the jobs of `find_jobs`, in one thread per core; blocks.

  Calls `tell` after each job. Raises the first error of a job.
  """
  pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
  jobs = find_jobs(engine, more, evaluate=evaluate)
  try:
    waiting = [pool.submit(job) for job in jobs]
    for num_done, future in enumerate(concurrent.futures.as_completed(waiting), 1):
      future.result()
      tell(num_done, len(jobs))
  finally:  # An interrupt does not wait for running jobs.
    pool.shutdown(wait=False, cancel_futures=True)


def find_jobs(engine: engine_lib.Engine, more: MoreJobs = _NO_MORE, *, evaluate: bool) -> list[Job]:
  """Returns the jobs that compile the programs of local nodes in any role.

  Args:
    more: The jobs of the executor, for the present lines.
    evaluate: Whether to include programs of evaluations.
  """
  names = ["forward", "backward", "update", "norms", "zeros", "cast"]
  if engine.replicas.refresh == "state":  # Updates while replicas are left.
    names.append("propose")
  if engine.replicas.runs_ahead:
    names.append("redundant")
  if evaluate:
    names.append("evaluate")
  has_copies = engine.replicas.has_replicas or engine.num_shares > 1  # These are compared.
  units = programs_lib.find_kinds(engine.specs)
  jobs: list[Job] = []
  # One place after the other: later ones load the programs of the first.
  for place in dict.fromkeys(map(engine.find_compute, engine.devices)):
    assert place is not None, "All these nodes are local."
    for unit in units:
      programs = engine.programs.get(unit, place)
      jobs += [functools.partial(programs.compile, name, place) for name in names]
      if has_copies:
        jobs.append(functools.partial(fingerprint.compile_for, unit, place))
    jobs.append(functools.partial(reduce.compile_ties, engine, place))
  for device in dict.fromkeys(engine.devices.values()) if engine.num_shares > 1 else ():
    jobs += [functools.partial(reduce.compile_add, unit, device) for unit in units]
  if engine.exchange is not None and engine.num_shares > 1:  # Other processes may own the same.
    device = jax.local_devices(backend="cpu")[0]
    num_bytes = [spec_lib.nbytes(u.accumulator) for s in engine.specs for u in s.units]
    for size in ordered_sum.sizes(max(num_bytes) // 4):
      jobs.append(functools.partial(ordered_sum.compile_add, engine.num_shares, size, device))
  return [*jobs, *more(engine.lines)]
