"""Compiles programs ahead: of the current roles, and of those after a death.

Programs that are already compiled cost nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import concurrent.futures
import functools
import itertools
import os
from typing import Any

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import fingerprint, reduce

Job = Callable[[], Any]
# The jobs of an executor for some lines, see `executor.Executor.jobs`.
MoreJobs = Callable[[engine_lib.Lines], list[Job]]
Owners = engine_lib.Owners
# By pipeline, node of each replica.
Shadows = Sequence[Mapping[base.StageId, base.NodeId]]
_NOBODY = base.NodeId(-1)  # A node without a device.
_MOST_PARTNERS = 512  # Nodes connected ahead, at most.
_no_more: MoreJobs = lambda lines: []


def compile_all(
    engine: engine_lib.Engine,
    *,
    tell: Callable[[int, int], object] = lambda num_done, num_jobs: None,
    **options: Any,
) -> None:
  """Runs `compile_jobs`, with these options, in one thread per core; blocks.

  Calls `tell` after each job. Raises the first error of a job.
  """
  pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
  jobs = compile_jobs(engine, **options)
  try:
    waiting = [pool.submit(job) for job in jobs]
    for num_done, future in enumerate(concurrent.futures.as_completed(waiting), 1):
      future.result()
      tell(num_done, len(jobs))
  finally:  # An interrupt does not wait for running jobs.
    pool.shutdown(wait=False, cancel_futures=True)


def compile_jobs(
    engine: engine_lib.Engine, *, evaluate: bool, more: MoreJobs = _no_more
) -> list[Job]:
  """Returns the jobs that compile all programs of local nodes.

  Includes the programs needed after the next death.

  Args:
    evaluate: Whether to include programs of evaluations.
    more: The jobs of the executor, see `executor.Executor.jobs`.
  """
  jobs = _program_jobs(engine, engine.owners, engine.shadows, evaluate=evaluate)
  jobs += [functools.partial(reduce.compile_ties, engine, node) for node in engine.nodes.values()]
  for owners, lines in ((engine.owners, engine.lines), *_deaths(engine)):
    jobs += [*_sum_jobs(engine, owners, lines), *more(lines)]
  return jobs


def compile_jobs_of(
    engine: engine_lib.Engine,
    owners: Owners,
    shadows: Shadows,
    lines: engine_lib.Lines,
    *,
    more: MoreJobs = _no_more,
) -> list[Job]:
  """Returns the jobs of the programs and sums that given roles need."""
  return [*_program_jobs(engine, owners, shadows), *_sum_jobs(engine, owners, lines), *more(lines)]


def compile_jobs_of_spare(engine: engine_lib.Engine, node: base.NodeId) -> list[Job]:
  """Returns the jobs of all programs that a local node needs in any role."""
  stages = base.stages(len(engine.specs))
  owned = _program_jobs(engine, [[node] * len(stages)], [{}])
  held = dict.fromkeys(stages, node)
  return owned + _program_jobs(engine, [[_NOBODY] * len(stages)], [held])


def _program_jobs(
    engine: engine_lib.Engine, owners: Owners, shadows: Shadows, *, evaluate: bool = False
) -> list[Job]:
  jobs: list[Job] = []
  for row, holders in zip(owners, shadows, strict=True):
    for stage, node in (*base.by_stage(row), *holders.items()):
      if (device := engine.find_compute(node)) is None:  # Of another process.
        continue
      spec, is_owner = engine.specs[stage], row[stage] == node
      names = ["backward", "cast", "forward", "norms", "update", "zeros"]
      if engine.replicas.refresh == "state":  # Updates while replicas are left.
        names.append("propose")
      if engine.replicas.runs_ahead and not is_owner:
        names.append("redundant")
      if evaluate and is_owner:
        names.append("evaluate")
      programs = engine.programs.get(spec, device)
      jobs += [functools.partial(programs.compile, [name]) for name in names]
      if engine.num_shares > 1:
        jobs += [
            functools.partial(engine.programs.get_add, unit, engine.devices[node])
            for unit in spec.units
        ]
      if len(owners) > 1 or holders:  # Fingerprints of copies are compared.
        jobs.append(functools.partial(fingerprint.compile_for, spec, device))
  return jobs


def _sum_jobs(engine: engine_lib.Engine, owners: Owners, lines: engine_lib.Lines) -> list[Job]:
  """Returns the jobs of sums over several processes."""
  return [
      functools.partial(reduce.get_exchanged_sum, engine, channel)
      for stage in base.stages(len(engine.specs))
      for channel in reduce.find_channels(engine.specs, stage, owners, lines)
      if engine.nodes.keys() & channel.nodes
  ]


def find_partners(engine: engine_lib.Engine) -> list[base.NodeId]:
  """Returns the nodes that exchange values with local nodes, in order of need.

  First those of the current roles, then those of roles after a death.
  """
  found: dict[base.NodeId, None] = {}
  none: list[dict[base.StageId, base.NodeId]] = [{} for _ in engine.owners]
  for groups in (
      find_groups(engine, engine.owners, engine.shadows, engine.lines),
      *(find_groups(engine, o, none, lines) for o, lines in _deaths(engine)),
  ):
    for group in sorted(map(sorted, groups)):
      if engine.nodes.keys() & group:
        found |= dict.fromkeys(group)
  return [node for node in found if node not in engine.nodes][:_MOST_PARTNERS]


def find_groups(
    engine: engine_lib.Engine, owners: Owners, shadows: Shadows, lines: engine_lib.Lines
) -> set[frozenset[base.NodeId]]:
  """Returns the groups of nodes that exchange values in given roles."""
  rows = [row for row, _ in lines]
  groups: list[Iterable[base.NodeId]] = []
  groups += [pair for row in rows for pair in itertools.pairwise(row)]
  groups += [[row[c.stage] for c in group] for row in rows for group in engine.ties]
  for row, holders in zip(owners, shadows, strict=True):
    groups += [(row[stage], node) for stage, node in holders.items()]
  groups += zip(*rows, *owners, strict=True)  # Sums, by stage.
  return {frozenset(group) for group in groups}


def survivable_deaths(owners: Owners, shadows: Shadows) -> Iterator[list[tuple[base.NodeId, ...]]]:
  """Yields the owners after the death of each node that has shadows."""
  for pipeline, holders in enumerate(shadows):
    row = owners[pipeline]
    for victim in sorted({row[stage] for stage in holders}):
      after = [tuple(r) for r in owners]
      after[pipeline] = tuple(
          holders.get(stage, node) if node == victim else node for stage, node in base.by_stage(row)
      )
      yield after


def _deaths(engine: engine_lib.Engine) -> Iterator[tuple[Owners, engine_lib.Lines]]:
  """Yields owners and lines after each survivable death; shares stay."""
  for owners in survivable_deaths(engine.owners, engine.shadows):
    lines = zip(owners, engine.shares, strict=True)
    yield owners, [(row, own) for row, own in lines if own]
