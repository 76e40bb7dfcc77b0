"""Predicts the time of a step, phase by phase.

Within a phase all nodes work at the same time, so it takes as long as its
slowest stage. The first phase, the passes, is played instead, instruction by
instruction, see `schedule.timeline`.

The gradients of a stage in n pipelines are summed over n nodes, B bytes each:
parts are gathered, added in the order of shares, and gathered back, so a node
sends 2 (n-1)/n B. So the bits do not depend on the distribution of shares. With
k shares per pipeline nothing can be added before it is sent, and a node sends
(k + 1) (n-1)/n B.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from bamboo_jax import base
from bamboo_jax.plan import cost_model
from bamboo_jax.schedule import costs as costs_lib


class OrderedSums:
  """What sums and replicas cost in this runtime; `sim.communication` has other ways.

  Sums follow all passes, and a node sends or receives, not both at a time.
  """

  def reduce_ms(
      self, profile: cost_model.Profile, num_bytes: int, *, num_pipelines: int, num_shares: int
  ) -> float:
    """Returns the time to sum `num_bytes` of gradients over all shares."""
    if num_shares == 1:
      return 0.0
    rounds, sent = 1, float(num_shares - 1)  # Added, if nothing is sent.
    if num_pipelines > 1:
      rounds, sent = self.find_sent(num_pipelines, num_shares)
    sent_ms = sent * num_bytes / profile.reduce_bytes_per_ms
    if num_pipelines > 1:
      sent_ms = self.exchange_ms(sent_ms, sent_ms)
    return rounds * profile.reduce_latency_ms + sent_ms

  def find_sent(self, num_pipelines: int, num_shares: int) -> tuple[int, float]:
    """Returns the rounds of a sum, and how often a node sends its gradients."""
    n = num_pipelines
    return 1, (num_shares // n + 1) * (n - 1) / n

  def sum_ms(
      self,
      profile: cost_model.Profile,
      stage: Sequence[cost_model.LayerCost],
      *,
      num_pipelines: int,
      num_shares: int,
  ) -> float:
    """Returns how long the sum of a stage lasts after its own last pass."""
    num_bytes = sum(layer.gradient_bytes for layer in stage)
    counts = dict(num_pipelines=num_pipelines, num_shares=num_shares)
    return self.reduce_ms(profile, num_bytes, **counts)

  def exposed_ms(
      self, stages: Sequence[Sequence[cost_model.LayerCost]], sum_ms: Sequence[float]
  ) -> float:
    """Returns for how long sums last after the last pass of all stages."""
    del stages
    return max(0.0, *sum_ms)

  def exchange_ms(self, sent_ms: float, received_ms: float) -> float:
    """Returns the time to send to one neighbour and receive from another."""
    return sent_ms + received_ms


RUNTIME = OrderedSums()


@dataclasses.dataclass(frozen=True)
class StepTime:
  """Duration of the phases of a step, which follow each other.

  Attributes:
    compute_ms: Forward and backward passes and the transfers between stages.
    ties_ms: Summing gradients of parameters shared by layers of two stages.
    reduce_ms: Summing gradients over shares, after the passes.
    norm_ms: Global gradient norm.
    refresh_ms: Bringing replicas up to date.
    vote_ms: Vote that the step is done.
    update_ms: Optimizer updates of stages and replicas.
  """

  compute_ms: float
  ties_ms: float
  reduce_ms: float
  norm_ms: float
  refresh_ms: float
  vote_ms: float
  update_ms: float

  @property
  def phases(self) -> tuple[float, ...]:
    """The time of each phase, in their order."""
    return tuple(vars(self).values())

  @property
  def total_ms(self) -> float:
    """Time of all phases."""
    return sum(self.phases)


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

  def lengthen(self, time: StepTime) -> StepTime:
    """Returns the time of a step in which this crosses the links between regions.

    Between two regions there is one slow link, which all their nodes share. So a phase
    lasts longer by the time of all that crosses it, in the direction with most. The
    `compute_ms` of `time` has the transfers of each pipeline already, as if it were alone.
    """
    regions = self.regions

    def cross_ms(sent: np.ndarray, num_trips: int) -> float:
      most = float(self.between(sent).max())
      return num_trips * regions.latency_ms + most / regions.bytes_per_ms if most else 0.0

    return StepTime(
        compute_ms=max(time.compute_ms, cross_ms(self.passes, 0)),
        ties_ms=time.ties_ms + cross_ms(self.ties, 2),
        reduce_ms=time.reduce_ms + cross_ms(self.sums, 2 * self.num_sums),
        norm_ms=time.norm_ms + regions.latency_ms,
        refresh_ms=time.refresh_ms + cross_ms(self.refresh, 1),
        vote_ms=time.vote_ms + regions.latency_ms,
        update_ms=time.update_ms,
    )
