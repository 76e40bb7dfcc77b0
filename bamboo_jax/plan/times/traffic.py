"""What nodes send each other in a step, and how long that takes between regions.

Between two regions there is one slow link, which all their nodes share. So a phase of
the step lasts longer by the time of all that crosses it, in the direction with most.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.models import units
from bamboo_jax.plan import cost_model, partition as partition_lib
from bamboo_jax.plan.times import step_time as step_time_lib
from bamboo_jax.schedule import costs as costs_lib, failover


@dataclasses.dataclass(frozen=True)
class Traffic:
  """Bytes from each node to each other one in a step, [sender, receiver], by phase.

  Attributes:
    nodes: The nodes of rows and columns.
    passes: Outputs of stages, and the gradients with respect to them.
    refresh: What replicas need.
    num_sums: Most sums of a node, which follow each other: one for each unit.
    regions: Those of the nodes.
  """

  nodes: tuple[base.NodeId, ...]
  passes: np.ndarray
  ties: np.ndarray
  sums: np.ndarray
  refresh: np.ndarray
  num_sums: int
  regions: costs_lib.Regions

  @property
  def total(self) -> np.ndarray:
    """Bytes of all phases."""
    total: np.ndarray = self.passes + self.ties + self.sums + self.refresh
    return total

  def between(self, sent: np.ndarray) -> np.ndarray:
    """Returns the bytes of `sent` from each region to each other one."""
    names = self.regions.names(self.nodes)
    is_in = np.array([[name == other for other in sorted({*names})] for name in names], float)
    between: np.ndarray = is_in.T @ sent @ is_in
    np.fill_diagonal(between, 0.0)
    return between


def find_traffic(
    profile: cost_model.Profile,
    partitions: Sequence[partition_lib.Partition],
    num_microbatches: Sequence[int],
    roles: Sequence[failover.Roles],
    *,
    num_shares: int,
    redundant: config_lib.RedundancySection,
    communication: step_time_lib.OrderedSums = step_time_lib.RUNTIME,
) -> Traffic:
  """Returns the traffic of a step; `partitions` and so on have one entry per pipeline.

  All pipelines are charged like the one with most of the `num_shares`.
  """
  nodes = tuple(sorted({node for one in roles for node in one.nodes}))
  place = {node: i for i, node in enumerate(nodes)}
  passes, ties, sums, refresh = np.zeros((4, len(nodes), len(nodes)))
  layers, num_pipelines = profile.layers, len(roles)
  shares = -(-num_shares // num_pipelines)
  number = {layer.name: i for i, layer in enumerate(layers)}
  rows = []  # Of the owner of each layer, by pipeline.
  for partition, count, one in zip(partitions, num_microbatches, roles, strict=True):
    owners = [place[node] for node in one.owners]
    row = [owners[partition.stage_of(i)] for i in range(len(layers))]
    rows.append(row)
    for last, (sender, receiver) in enumerate(zip(row, row[1:], strict=False)):
      for ends in ((sender, receiver), (receiver, sender)):
        passes[ends] += count * layers[last].activation_bytes
    for tie in profile.ties:
      ends = tuple(row[number[name]] for name in (tie.owner, tie.user))
      for way in (ends, ends[::-1]):
        ties[way] += shares * tie.tied_bytes
    for stage, shadow in one.shadows.items():
      stage_layers = profile.by_stage(partition.bounds)[stage]
      sent = cost_model.refresh_bytes(stage_layers, redundant.refresh)
      refresh[owners[stage], place[shadow]] += sent
  if num_pipelines > 1:
    # To each other owner, of one byte.
    share = communication.find_sent(num_pipelines, shares * num_pipelines)[1] / (num_pipelines - 1)
    for layer, owners in zip(layers, zip(*rows, strict=True), strict=True):
      # Whole bytes: their sums are exact in any order, so all members find the same.
      sums[np.ix_(owners, owners)] += round(share * layer.gradient_bytes)
  for sent in (passes, ties, sums, refresh):
    np.fill_diagonal(sent, 0.0)
  firsts = {0, *units.find_cuts([layer.name for layer in layers])}
  num_sums = max(len(firsts & part) for partition in partitions for part in partition.sets)
  return Traffic(nodes, passes, ties, sums, refresh, num_sums, profile.regions)


def add_crossing(time: step_time_lib.StepTime, traffic: Traffic) -> step_time_lib.StepTime:
  """Returns the time of a step in which `traffic` crosses the links between regions.

  Its `compute_ms` has the transfers of each pipeline already, as if it were alone.
  """
  regions = traffic.regions

  def cross_ms(sent: np.ndarray, num_trips: int) -> float:
    most = float(traffic.between(sent).max())
    return num_trips * regions.latency_ms + most / regions.bytes_per_ms if most else 0.0

  return dataclasses.replace(
      time,
      compute_ms=max(time.compute_ms, cross_ms(traffic.passes, 0)),
      ties_ms=time.ties_ms + cross_ms(traffic.ties, 2),
      reduce_ms=time.reduce_ms + cross_ms(traffic.sums, 2 * traffic.num_sums),
      norm_ms=time.norm_ms + regions.latency_ms,
      refresh_ms=time.refresh_ms + cross_ms(traffic.refresh, 1),
      vote_ms=time.vote_ms + regions.latency_ms,
  )
