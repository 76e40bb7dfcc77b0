"""Compiles programs ahead: of the current roles, and of those after a death.

Programs that are already compiled cost nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import concurrent.futures
import functools
import itertools
import os
from typing import Any

import jax

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import fingerprint
from bamboo_jax.runtime.phases import reduce
from bamboo_jax.runtime.phases import refresh
from bamboo_jax.runtime.phases import ties
from bamboo_jax.runtime.wire import share_sum
from bamboo_jax.schedule import channel as channel_lib

Job = Callable[[], Any]
# The jobs of an executor for some lines, see `executor.Executor.jobs`.
MoreJobs = Callable[[engine_lib.Lines], list[Job]]
Owners = engine_lib.Owners
Shadows = Sequence[Mapping[int, int]]  # By pipeline, node of each replica.
_NOBODY = -1  # A node without a device.
_MOST_PARTNERS = 512  # Nodes connected ahead, at most.
_no_more: MoreJobs = lambda lines: []


def compile_all(engine: engine_lib.Engine, **options: Any) -> None:
  """Runs `compile_jobs` in one thread per core; raises the first error."""
  pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
  jobs = compile_jobs(engine, **options)
  try:
    waiting = [pool.submit(_run, job) for job in jobs]
    for future in concurrent.futures.as_completed(waiting):
      future.result()
  finally:  # An interrupt does not wait for running jobs.
    pool.shutdown(wait=False, cancel_futures=True)


def _run(job: Job) -> None:
  """Runs a job; what it returns is kept by who made it, if by anybody."""
  job()


def compile_jobs(
    engine: engine_lib.Engine,
    *,
    evaluate: bool,
    spreads: bool = False,
    more: MoreJobs = _no_more,
) -> list[Job]:
  """Returns the jobs that compile all programs of local nodes.

  Includes those needed after the next death. With `spreads` also the sums of
  shares that are distributed over nodes in any other way.
  """
  later = _later_channels(engine)
  now = find_channels(engine, engine.owners, engine.shadows, engine.lines)
  return [
      *_program_jobs(engine, engine.owners, engine.shadows, evaluate=evaluate),
      *(
          functools.partial(ties.compile_for, engine, node)
          for node in engine.nodes.values()
      ),
      *_channel_jobs(engine, now | later | _sums_ahead(engine, spreads)),
      *more(engine.lines),
      *(job for _, lines in _deaths(engine) for job in more(lines)),
  ]


def compile_jobs_of(
    engine: engine_lib.Engine,
    owners: Owners,
    shadows: Shadows,
    lines: engine_lib.Lines,
    *,
    more: MoreJobs = _no_more,
) -> list[Job]:
  """Returns the jobs of the programs, links and sums that other roles need."""
  channels = find_channels(engine, owners, shadows, lines)
  return [
      *_program_jobs(engine, owners, shadows),
      *_channel_jobs(engine, channels),
      *more(lines),
  ]


def compile_jobs_of_spare(engine: engine_lib.Engine, node: int) -> list[Job]:
  """Returns the jobs of the programs of a local node in any role."""
  stages = range(len(engine.specs))
  owned = _program_jobs(engine, [[node] * len(stages)], [{}])
  held = dict.fromkeys(stages, node)
  return owned + _program_jobs(engine, [[_NOBODY] * len(stages)], [held])


def _program_jobs(
    engine: engine_lib.Engine,
    owners: Owners,
    shadows: Shadows,
    *,
    evaluate: bool = False,
) -> list[Job]:
  jobs = []
  for row, holders in zip(owners, shadows, strict=True):
    for stage, node in (*enumerate(row), *holders.items()):
      if (device := engine.find_compute(node)) is None:
        continue
      spec, is_owner = engine.specs[stage], row[stage] == node
      names = ["backward", "cast", "forward", "norms", "zeros"]
      names.append(
          "propose" if engine.replicas.refresh == "state" else "update"
      )
      if engine.replicas.runs_ahead and not is_owner:
        names.append("redundant")
      if evaluate and is_owner:
        names.append("evaluate")
      programs = engine.programs.get(spec, device)
      jobs.append(functools.partial(programs.compile, names))
      if len(owners) > 1 or holders:  # Fingerprints of copies are compared.
        jobs.append(functools.partial(fingerprint.compile_for, spec, device))
  return jobs


def find_partners(engine: engine_lib.Engine) -> list[int]:
  """Returns the nodes that local ones need now, then those after a death."""
  now = find_channels(engine, engine.owners, engine.shadows, engine.lines)
  found: dict[int, None] = {}
  for channels in (now, _later_channels(engine)):
    for channel in sorted(channels):
      if engine.nodes.keys() & channel.nodes:
        found |= dict.fromkeys(channel.nodes)
  return [node for node in found if node not in engine.nodes][:_MOST_PARTNERS]


def find_channels(
    engine: engine_lib.Engine,
    owners: Owners,
    shadows: Shadows,
    lines: engine_lib.Lines,
) -> set[channel_lib.Channel]:
  """Returns the channels of a step in some roles; see `engine.Engine.lines`."""
  found = set()
  for row, _ in lines:
    for stage, (source, to) in enumerate(itertools.pairwise(row)):
      if source != to:
        found.add(channel_lib.Channel("activation", (source, to), (stage,)))
        found.add(channel_lib.Channel("grad", (to, source), (stage,)))
    found |= ties.find_channels(engine.specs, row)
  for row, holders in zip(owners, shadows, strict=True):
    for stage, shadow in holders.items():
      ends = (row[stage], shadow)
      found.update(refresh.find_channels(engine.specs, stage, *ends))
  for stage in range(len(engine.specs)):
    found.update(reduce.find_channels(engine.specs, stage, owners, lines))
  return found


def survivable_deaths(
    owners: Owners, shadows: Shadows
) -> Iterator[list[tuple[int, ...]]]:
  """Yields the owners after the death of each node that has shadows."""
  for pipeline, holders in enumerate(shadows):
    row = owners[pipeline]
    for victim in sorted({row[stage] for stage in holders}):
      after = [tuple(r) for r in owners]
      after[pipeline] = tuple(
          holders.get(stage, node) if node == victim else node
          for stage, node in enumerate(row)
      )
      yield after


def _deaths(
    engine: engine_lib.Engine,
) -> Iterator[tuple[Owners, engine_lib.Lines]]:
  """Yields owners and lines after each survivable death; shares stay."""
  for owners in survivable_deaths(engine.owners, engine.shadows):
    lines = zip(owners, engine.shares, strict=True)
    yield owners, [(row, own) for row, own in lines if own]


def _later_channels(engine: engine_lib.Engine) -> set[channel_lib.Channel]:
  found = set()
  for owners, lines in _deaths(engine):
    found |= find_channels(engine, owners, [{} for _ in owners], lines)
  return found


def _sums_ahead(
    engine: engine_lib.Engine, spreads: bool
) -> set[channel_lib.Channel]:
  """Returns a sum for each kind of unit and each program that may be needed.

  That is one for each smaller number of pipelines, and with `spreads` one for
  each number of devices and of shares on one of them. Programs for other nodes
  are the same, and need only be loaded then.
  """
  if engine.exchange is not None:
    return set()
  kinds = {}
  for stage, spec in enumerate(engine.specs):
    for index, unit in enumerate(spec.units):
      kinds.setdefault(unit.kind, (stage, index))
  found, num_shares = set(), engine.num_shares
  nodes = _nodes_apart(engine)
  spreads = spreads and engine.max_holders > 0
  most = engine.max_holders if spreads else len(engine.owners) - 1
  for count in range(1, min(most, len(nodes)) + 1):
    sizes = share_sum.slot_sizes(num_shares, count)
    for size in sizes if spreads else sizes[:1]:
      first, *others = nodes[:count]
      left = num_shares - size
      dealt = [*itertools.islice(itertools.cycle(others or [first]), left)]
      holders = (*[first] * size, *dealt)
      channel = (*holders, *(n for n in others if n not in holders))
      found |= {
          channel_lib.Channel("sum", channel, key) for key in kinds.values()
      }
  return found


def _nodes_apart(engine: engine_lib.Engine) -> list[int]:
  """Returns nodes on different devices, a local one first."""
  known = {n for row in engine.owners for n in row} & engine.devices.keys()
  found: dict[jax.Device, int] = {}
  for node in (*sorted(engine.nodes), *sorted(known), *sorted(engine.devices)):
    found.setdefault(engine.devices[node], node)
  return [*found.values()]


def _channel_jobs(
    engine: engine_lib.Engine, channels: set[channel_lib.Channel]
) -> list[Job]:
  jobs = []
  for channel in sorted(channels):
    if engine.nodes.keys() & channel.nodes and _are_placed(engine, channel):
      if channel.kind == "sum":
        jobs.append(functools.partial(reduce.get_sum, engine, channel))
      else:
        jobs.append(functools.partial(engine.links.get, channel))
  return jobs


def _are_placed(
    engine: engine_lib.Engine, channel: channel_lib.Channel
) -> bool:
  """Returns whether all nodes have devices, as dead ones may not."""
  if engine.exchange is not None:
    return True
  return engine.devices.keys() >= set(channel.nodes)
