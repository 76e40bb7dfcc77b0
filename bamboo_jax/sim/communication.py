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

from bamboo_jax import base
from bamboo_jax.plan import cost_model
from bamboo_jax.plan.times import step_time as step_time_lib

REDUCTIONS = ("ordered", "ring", "tree")
OVERLAPS = ("none", "drain", "backward")
DUPLEXES = ("half", "full")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Communication(step_time_lib.OrderedSums):
  """The methods of communication; the defaults are those of this runtime.

  Attributes:
    reduction: How gradients are summed over pipelines, one of `REDUCTIONS`.
    overlap: Passes with which a sum overlaps: "none", those of earlier stages
      when the pipeline drains ("drain"), or also the last backward pass of its
      own stage, layer by layer ("backward").
    duplex: Whether a node can send while it receives ("full"), or not ("half").
      A measured rate of reduction includes both directions.
    gpus_per_node: Each GPU of a node has a part of each microbatch, so their
      gradients are summed within the node first, by a ring.
    inner_bytes_per_ms: Bandwidth between GPUs of a node, in each direction.
  """

  reduction: str = "ordered"
  overlap: str = "none"
  duplex: str = "half"
  gpus_per_node: int = 1
  inner_bytes_per_ms: float = math.inf

  def __post_init__(self) -> None:
    for name, allowed in (("reduction", REDUCTIONS), ("overlap", OVERLAPS), ("duplex", DUPLEXES)):
      if getattr(self, name) not in allowed:
        raise ValueError(base.suggest(getattr(self, name), allowed, what=name))
    if self.gpus_per_node < 1 or not self.inner_bytes_per_ms > 0:
      raise ValueError(
          "gpus_per_node must be at least 1 and inner_bytes_per_ms above 0, "
          f"got {self.gpus_per_node} and {self.inner_bytes_per_ms}."
      )

  def reduce_ms(
      self, profile: cost_model.Profile, num_bytes: int, *, num_pipelines: int, num_shares: int
  ) -> float:
    """Returns the time to sum `num_bytes` of gradients over all shares."""
    inner = 2 * (self.gpus_per_node - 1) / self.gpus_per_node
    inner_ms = inner * num_bytes / self.inner_bytes_per_ms
    if num_shares == 1:
      return inner_ms
    n = num_pipelines
    rounds, sent = 1, (num_shares // n + 1) * (n - 1) / n
    if n == 1:  # Nothing is sent, but shares are added.
      sent = num_shares - 1
    elif self.reduction == "ring":
      rounds, sent = 2 * (n - 1), 2 * (n - 1) / n
    elif self.reduction == "tree":
      rounds, sent = 2 * math.ceil(math.log2(n)), 2.0
    if self.duplex == "half" and not profile.measured and n > 1:
      sent *= 2
    sent_ms = sent * num_bytes / profile.reduce_bytes_per_ms
    return inner_ms + rounds * profile.reduce_latency_ms + sent_ms

  def sum_ms(
      self,
      profile: cost_model.Profile,
      stages: Sequence[Sequence[cost_model.LayerCost]],
      *,
      num_pipelines: int,
      num_shares: int,
  ) -> tuple[float, ...]:
    """Returns, by stage, how long its sum lasts after its own last pass."""
    ends = []
    for stage in stages:
      parts = [stage]
      ready_ms, end_ms = 0.0, -math.inf
      if self.overlap == "backward":
        parts = [[layer] for layer in reversed(stage)]
        ready_ms = -sum(layer.backward_ms for layer in stage)
      for part in parts:
        if self.overlap == "backward":
          ready_ms += part[0].backward_ms
        end_ms = max(end_ms, ready_ms) + self.reduce_ms(
            profile,
            sum(layer.gradient_bytes for layer in part),
            num_pipelines=num_pipelines,
            num_shares=num_shares,
        )
      ends.append(end_ms)
    return tuple(ends)

  def exposed_ms(
      self, stages: Sequence[Sequence[cost_model.LayerCost]], sum_ms: Sequence[float]
  ) -> float:
    """Returns for how long sums last after the last pass of all stages.

    While the pipeline drains, each earlier stage has a backward pass to do.
    """
    drain_ms, exposed_ms = 0.0, 0.0
    for stage, stage_ms in zip(stages, sum_ms, strict=True):
      exposed_ms = max(exposed_ms, stage_ms - drain_ms)
      if self.overlap != "none":
        drain_ms += sum(layer.backward_ms for layer in stage)
    return exposed_ms

  def exchange_ms(self, sent_ms: float, received_ms: float) -> float:
    """Returns the time to send to one neighbour and receive from another."""
    if self.duplex == "half":
      return sent_ms + received_ms
    return max(sent_ms, received_ms)
