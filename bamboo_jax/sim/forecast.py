"""What a policy is expected to train if nodes are lost at a given rate.

Parcae (NSDI'24) plans for throughput under predicted preemptions rather than
for the fastest step. Here losses come at an even rate, and what each of them
costs is what the ladder would do about that of a single node, until it is
replaced.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax.plan import ladder as ladder_lib
from bamboo_jax.sim import decisions
from bamboo_jax.sim import loop


@dataclasses.dataclass(frozen=True)
class Forecast:
  """What is expected to happen.

  Attributes:
    num_nodes: Live nodes.
    losses_per_node_hour: Instants at which nodes are lost, per node and hour.
  """

  num_nodes: int
  losses_per_node_hour: float

  def __post_init__(self) -> None:
    if self.num_nodes < 1 or not self.losses_per_node_hour >= 0:
      raise ValueError(f"A forecast needs nodes and a rate, got {self}.")


def find_best(
    policies: Sequence[loop.Policy], forecast: Forecast
) -> loop.Policy:
  """Returns the policy of which most is expected; the first of equals."""
  return max(policies, key=lambda p: expected_samples_per_sec(p, forecast))


def expected_samples_per_sec(policy: loop.Policy, forecast: Forecast) -> float:
  """Returns the throughput to be expected; 0 if there are too few nodes."""
  decider = policy.decider
  first = decider.answer(
      decider.empty,
      ladder_lib.Change(joined=tuple(range(forecast.num_nodes))),
      when="boundary",
      find_zones=dict,
  ).places
  if not first.num_training:
    return 0.0
  victims = first.state.pipelines[0].nodes  # The other pipelines are similar.
  lost_secs = [_secs_per_loss(policy, first, node) for node in victims]
  rate_per_sec = forecast.losses_per_node_hour / 3600 * first.num_training
  share = 1.0 - rate_per_sec * sum(lost_secs) / len(lost_secs)
  return first.cost.num_samples / first.cost.secs * max(0.0, share)


def _secs_per_loss(
    policy: loop.Policy, places: decisions.Places, victim: int
) -> float:
  """Returns how much training time a loss costs, and a replacement later."""
  decider, durations = policy.decider, policy.durations
  answer = decider.answer(
      places,
      ladder_lib.Change(lost=frozenset({victim})),
      when="step",
      find_zones=dict,
  )
  half_step_secs = places.cost.secs / 2
  secs = durations.detect_secs + answer.delay.secs
  secs += answer.delay.left_share * half_step_secs
  if answer.decision.rolls_back:
    secs += durations.save_every_secs / 2 + durations.save_secs
  elif answer.decision.rung == "reconfigure":
    secs += half_step_secs
  return (
      secs
      + decider.answer(
          answer.places,
          ladder_lib.Change(joined=(answer.places.num_places,)),
          when="boundary",
          find_zones=dict,
      ).delay.secs
  )
