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

from bamboo_jax import config as config_lib
from bamboo_jax.plan import cost_model, partition as partition_lib


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


def predict_step_time(
    profile: cost_model.Profile,
    partition: partition_lib.Partition,
    *,
    num_pipelines: int,
    num_shares: int,
    compute_ms: float,
    redundant: config_lib.RedundancySection,
    communication: OrderedSums = RUNTIME,
) -> StepTime:
  """Returns the times of a step.

  Args:
    compute_ms: Time of the slowest pipeline's passes.
  """
  stages = profile.by_stage(partition.bounds)
  refresh = redundant.refresh if redundant.has_replicas else None
  counts = dict(num_pipelines=num_pipelines, num_shares=num_shares)
  sum_ms = [communication.sum_ms(profile, stage, **counts) for stage in stages]
  # Squares and losses are gathered from all members, as votes are.
  scalar_ms = max(profile.reduce_latency_ms, profile.vote_ms) if partition.num_stages > 1 else 0.0
  return StepTime(
      compute_ms=compute_ms,
      ties_ms=num_shares // num_pipelines * _ties_ms(profile, partition),
      reduce_ms=communication.exposed_ms(stages, sum_ms),
      norm_ms=max(sum(c.norm_ms for c in stage) for stage in stages) + scalar_ms,
      refresh_ms=_refresh_ms(profile, stages, refresh, communication),
      vote_ms=profile.vote_ms,
      update_ms=_update_ms(stages, refresh),
  )


def _refresh_ms(
    profile: cost_model.Profile,
    stages: Sequence[Sequence[cost_model.LayerCost]],
    refresh: str | None,
    communication: OrderedSums,
) -> float:
  """Returns the time to send a neighbour its replica, and to receive one."""
  if refresh is None or len(stages) == 1:
    return 0.0
  sent_ms = [profile.transfer_ms(cost_model.refresh_bytes(stage, refresh)) for stage in stages]
  return max(
      communication.exchange_ms(a, b)
      for a, b in zip(sent_ms, sent_ms[1:] + sent_ms[:1], strict=True)
  )


def _update_ms(stages: Sequence[Sequence[cost_model.LayerCost]], refresh: str | None) -> float:
  """Returns the time of the updates of a node: of its stage and its replica."""
  own_ms = [sum(c.update_ms for c in stage) for stage in stages]
  if refresh != "gradient" or len(stages) == 1:
    return max(own_ms)
  return max(a + b for a, b in zip(own_ms, own_ms[1:] + own_ms[:1], strict=True))


def _ties_ms(profile: cost_model.Profile, partition: partition_lib.Partition) -> float:
  """Returns the time to sum tied gradients: to the owner and back."""
  stage_of = {layer.name: partition.stage_of(i) for i, layer in enumerate(profile.layers)}
  return sum(
      2 * profile.transfer_ms(tie.tied_bytes)
      for tie in profile.ties
      if stage_of[tie.owner] != stage_of[tie.user]
  )
