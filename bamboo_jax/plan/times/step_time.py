"""Predicts the time of a step, phase by phase.

Within a phase all nodes work at the same time, so it takes as long as its
slowest stage. The first phase, the passes, is played instead, instruction by
instruction, see `schedule.timeline`.

The gradients of a stage in n pipelines are summed over n nodes, B bytes each:

  method   each node sends   rounds
  ring     2 (n-1)/n B       2 (n-1)            NCCL, gloo; chunks go round
  tree     2 B               2 ceil(log2 n)     NCCL's double binary tree
  ordered  2 (n-1)/n B       one as measured    parts gathered, added in the
                                                order of shares, gathered back

Only with `ordered` do the bits not depend on the distribution of shares, so
this runtime uses it; with k shares per pipeline nothing can be added before it
is sent, and a node sends (k + 1) (n-1)/n B.
"""

from collections.abc import Sequence
import dataclasses
import math
import operator

from bamboo_jax import base
from bamboo_jax.plan import cost_model, partition as partition_lib, stages as stages_lib

REDUCTIONS = ("ordered", "ring", "tree")
OVERLAPS = ("none", "drain", "backward")
DUPLEXES = ("half", "full")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Communication:
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


RUNTIME = Communication()


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
    phases: tuple[float, ...] = _PHASES(self)
    return phases

  @property
  def total_ms(self) -> float:
    """Time of all phases."""
    return sum(self.phases)


_PHASES = operator.attrgetter(*(f.name for f in dataclasses.fields(StepTime)))


def predict_step_time(
    profile: cost_model.Profile,
    partition: partition_lib.Partition,
    *,
    num_pipelines: int,
    num_shares: int,
    compute_ms: float,
    refresh: str | None = None,
    communication: Communication = RUNTIME,
) -> StepTime:
  """Returns the times of a step.

  Args:
    compute_ms: Time of the slowest pipeline's passes.
    refresh: The data sent to replicas: the final "gradient", from which they
      compute the update, or the updated "state"; None without replicas.
  """
  stages = stages_lib.layers_by_stage(profile, partition)
  sum_ms = communication.sum_ms(profile, stages, num_pipelines=num_pipelines, num_shares=num_shares)
  scalar_ms = profile.reduce_latency_ms if partition.num_stages > 1 else 0.0
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
    communication: Communication,
) -> float:
  """Returns the time to send a neighbour its replica, and to receive one."""
  if refresh is None or len(stages) == 1:
    return 0.0
  sent_ms = [
      profile.transfer_ms(
          sum(c.gradient_bytes + (c.slot_bytes if refresh == "state" else 0) for c in stage)
      )
      for stage in stages
  ]
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
