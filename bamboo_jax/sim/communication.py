"""How published systems sum gradients and refresh replicas, and what it costs.

The gradients of a stage in n pipelines are summed over n nodes, B bytes each:

  method   each node sends   rounds
  ring     2 (n-1)/n B       2 (n-1)            NCCL, gloo; chunks go round
  tree     2 B               2 ceil(log2 n)     NCCL's double binary tree
  ordered  2 (n-1)/n B       one as measured    this runtime's, see
                                                `plan.times.step_time`
"""

from collections.abc import Sequence
import dataclasses
import math

from bamboo_jax import config as config_lib
from bamboo_jax.plan import cost_model
from bamboo_jax.plan.times import step_time as step_time_lib


@dataclasses.dataclass(frozen=True)
class Communication(step_time_lib.OrderedSums):
  """The methods of communication that a study names.

  A measured rate of reduction includes both directions, whatever `duplex`.
  """

  study: config_lib.StudySection

  def reduce_ms(
      self, profile: cost_model.Profile, num_bytes: int, *, num_pipelines: int, num_shares: int
  ) -> float:
    """Returns the time to sum `num_bytes` of gradients over all shares."""
    if num_shares == 1:
      return 0.0
    n = num_pipelines
    rounds, sent = 1, (num_shares // n + 1) * (n - 1) / n
    if n == 1:  # Nothing is sent, but shares are added.
      sent = num_shares - 1
    elif self.study.reduction == "ring":
      rounds, sent = 2 * (n - 1), 2 * (n - 1) / n
    elif self.study.reduction == "tree":
      rounds, sent = 2 * math.ceil(math.log2(n)), 2.0
    if self.study.duplex == "half" and not profile.measured and n > 1:
      sent *= 2
    sent_ms = sent * num_bytes / profile.reduce_bytes_per_ms
    return rounds * profile.reduce_latency_ms + sent_ms

  def sum_ms(
      self,
      profile: cost_model.Profile,
      stage: Sequence[cost_model.LayerCost],
      *,
      num_pipelines: int,
      num_shares: int,
  ) -> float:
    """Returns how long the sum of a stage lasts after its own last pass."""
    counts = dict(num_pipelines=num_pipelines, num_shares=num_shares)
    if self.study.overlap != "backward":
      return super().sum_ms(profile, stage, **counts)
    ready_ms, end_ms = -sum(layer.backward_ms for layer in stage), -math.inf
    for layer in reversed(stage):
      ready_ms += layer.backward_ms
      sum_ms = self.reduce_ms(profile, layer.gradient_bytes, **counts)
      end_ms = max(end_ms, ready_ms) + sum_ms
    return end_ms

  def exposed_ms(
      self, stages: Sequence[Sequence[cost_model.LayerCost]], sum_ms: Sequence[float]
  ) -> float:
    """Returns for how long sums last after the last pass of all stages.

    While the pipeline drains, each earlier stage has a backward pass to do.
    """
    drain_ms, exposed_ms = 0.0, 0.0
    for stage, stage_ms in zip(stages, sum_ms, strict=True):
      exposed_ms = max(exposed_ms, stage_ms - drain_ms)
      if self.study.overlap != "none":
        drain_ms += sum(layer.backward_ms for layer in stage)
    return exposed_ms

  def exchange_ms(self, sent_ms: float, received_ms: float) -> float:
    """Returns the time to send to one neighbour and receive from another."""
    if self.study.duplex == "half":
      return sent_ms + received_ms
    return max(sent_ms, received_ms)
