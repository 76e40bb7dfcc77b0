"""All that goes between nodes, and what has to be done before it can.

Links carry values, sums add up the gradients of pipelines, ties those of shared
parameters, and meetings connect nodes ahead of time.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
import functools
import itertools
from typing import Any

import jax

from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import sums as sums_lib
from bamboo_jax.runtime.phases import ties as ties_lib
from bamboo_jax.runtime.phases import totals as totals_lib
from bamboo_jax.runtime.stage import programs as stage_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import gate as gate_lib
from bamboo_jax.runtime.wire import links as links_lib
from bamboo_jax.runtime.wire import preconnect as meetings_lib

PyTree = Any
Nodes = Mapping[int, node_lib.Node]
Owners = Sequence[Sequence[int]]  # For each pipeline, the node of each stage.
Shares = Sequence[Sequence[int]]  # For each pipeline, those it computes.


class Exchange:
  """What the nodes of this process have between them, and with others.

  Args:
    specs: One entry per stage.
    devices: The device of each node.
    kind: See `link.make_link`.
    cache: Has the programs of sums.
    gate: Is told of transfers with other processes.

  Attributes:
    links: All links.
    sums: All sums over shares.
    ties: All sums of tied parameters.
    meetings: All meetings.
  """

  def __init__(
      self,
      specs: Sequence[spec_lib.StageSpec],
      *,
      devices: Mapping[int, jax.Device],
      kind: str,
      cache: stage_lib.ProgramCache,
      gate: gate_lib.Gate | None,
  ) -> None:
    self._specs = specs
    self.links = links_lib.Links(
        devices,
        shapes={s: spec.outputs for s, spec in enumerate(specs[:-1])},
        kind=kind,
        gate=gate,
    )
    self.sums = sums_lib.Sums(specs, devices=devices, cache=cache, gate=gate)
    self.ties = ties_lib.TieSum(specs, links=self.links)
    self.meetings = meetings_lib.Meetings(devices, gate)

  def preparations(
      self,
      owners: Owners,
      shadows: Sequence[Mapping[int, int]],
      *,
      shares: Shares,
      local: Container[int],
      like: Sequence[PyTree],
  ) -> list[Callable[[], Any]]:
    """Returns calls that compile the links and sums of some roles.

    What has been compiled before takes no time.

    Args:
      owners: For each pipeline, the node of each stage.
      shadows: For each pipeline, the node that holds a replica of a stage.
      shares: For each pipeline, the shares that it computes.
      local: Nodes of this process; what does not concern them is left out.
      like: Shapes of what replicas are sent, by stage.
    """
    jobs = []
    for row, replicas in zip(owners, shadows, strict=True):
      for stage, ends in enumerate(itertools.pairwise(row)):
        if ends[0] != ends[1] and any(node in local for node in ends):
          jobs.append(functools.partial(self.links.connect, stage, *ends))
      for stage, shadow in sorted(replicas.items()):
        if row[stage] in local or shadow in local:
          ends = (row[stage], shadow)
          get = functools.partial(self.links.get, like=like[stage])
          jobs.append(functools.partial(get, ("refresh", stage), *ends))
      jobs.append(functools.partial(self.ties.connect, row, local))
    for stage in range(len(like)):
      holders = find_holders(owners, shares, stage)
      if any(node in local for node in holders):
        jobs.append(functools.partial(self.sums.prepare, stage, holders))
    return jobs

  def tie(
      self, nodes: Nodes, owners: Owners, shares: Shares
  ) -> dict[tuple[int, int], spec_lib.Accumulator]:
    """Returns accumulators with sums of tied gradients, by stage and share.

    Args:
      nodes: Local nodes by number.
      owners: For each pipeline, the node of each stage.
      shares: For each pipeline, the shares that it computes.
    """
    changed = {}
    for row, own in zip(owners, shares, strict=True):
      for share in own:
        held = {
            (stage, node): nodes[node].store.accumulators[stage, share]
            for stage, node in enumerate(row)
            if node in nodes
        }
        for stage, tied in self.ties.add(held, row).items():
          changed[stage, share] = tied
    return changed

  def reduce(
      self,
      nodes: Nodes,
      owners: Owners,
      shares: Shares,
      *,
      tied: Mapping[tuple[int, int], spec_lib.Accumulator],
  ) -> totals_lib.Totals:
    """Returns the sums over all shares, of stages with a local owner.

    Args:
      nodes: As for `tie`, like the others.
      owners: The same.
      shares: The same.
      tied: What `tie` returned.
    """
    totals = {}
    for stage in range(len(self._specs)):
      held = {}
      holders = find_holders(owners, shares, stage)
      for share, holder in enumerate(holders):
        if holder in nodes:
          accumulator = nodes[holder].store.accumulators[stage, share]
          held[share] = tied.get((stage, share), accumulator)
      if held:
        totals[stage] = self.sums.add(stage, holders, held)
    return totals

  def groups(self, owners: Owners, shares: Shares) -> set[tuple[int, ...]]:
    """Returns who needs a connection with whom within a step.

    Args:
      owners: For each pipeline, the node of each stage.
      shares: For each pipeline, the shares that it computes.

    Returns:
      Groups of nodes, in the order that the devices of a program are in.
    """
    found = set()
    for row in owners:
      for ends in itertools.pairwise(row):
        found |= {ends, ends[::-1]}
      found |= self.ties.ends(row)
    for stage in range(len(self._specs)):
      found.add(tuple(dict.fromkeys(find_holders(owners, shares, stage))))
    return {group for group in found if len(set(group)) > 1}

  def meet(self, groups: Iterable[tuple[int, ...]]) -> int:
    """Connects groups that are not; returns how many this process is in.

    All processes call it at once; see `meetings.Meetings.hold`.
    """
    needed = [g for g in sorted(groups) if self.meetings.is_needed(g)]
    for group in needed:
      self.meetings.hold(group)
    return len(needed)

  def meeting_jobs(
      self, groups: Iterable[tuple[int, ...]]
  ) -> list[Callable[[], Any]]:
    """Returns calls that compile what `meet` runs for these groups."""
    return [
        functools.partial(self.meetings.prepare, group)
        for group in sorted(groups)
        if self.meetings.is_needed(group)
    ]

  def follow(self, channel: str, *, like: Sequence[PyTree]) -> None:
    """Takes part in a transfer with nothing to say; blocks.

    Args:
      channel: Name of the transfer, from `gate.Gate.close`.
      like: Shapes of what replicas are sent, by stage.
    """
    kind, *rest = channel.partition("@")[0].split("/")
    match kind:
      case "meet":
        return self.meetings.follow(channel)
      case "sum":
        return self.sums.follow(channel)
    stage = int(rest[0])
    match kind:
      case "activation" | "grad":
        value = self._specs[stage].outputs
      case "refresh":
        value = like[stage]
      case "tie":
        value = self._specs[stage].accumulator.grads[rest[1]][rest[2]]
      case _:
        raise AssertionError(channel)
    self.links.follow(channel, (kind, stage, *rest[1:]), like=value)


def find_holders(owners: Owners, shares: Shares, stage: int) -> list[int]:
  """Returns the node that holds each share of a stage."""
  holder = {
      share: row[stage]
      for row, own in zip(owners, shares, strict=True)
      for share in own
  }
  return [holder[share] for share in range(len(holder))]
