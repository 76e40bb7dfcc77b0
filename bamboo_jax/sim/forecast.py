"""Forecasts the training of a policy at a given rate of losses.

Parcae (NSDI'24) plans for *liveput*, the throughput under predicted
preemptions, rather than for the fastest step. Here it is the throughput with
each number of nodes, weighted by its predicted time, minus the cost of losses.
Losses have a constant rate; each costs what the ladder would do about the loss
of a single node, until the node is replaced.
"""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.sim import decisions, loop
from bamboo_jax.traces import summary as trace_summary, trace as trace_lib

Policy = loop.Policy
Places = decisions.Places


def choose(policies: Sequence[Policy], trace: trace_lib.Trace) -> Policy:
  """Returns the policy with the highest expected throughput; ties: the first.

  Ignores numbers of nodes seen for less than 1 % of the time, because planning
  for each takes time.
  """
  if len(policies) == 1:
    return policies[0]
  live: dict[int, float] = {}
  for start_ms, end_ms, count in trace_summary.live_spans(trace):
    live[count] = live.get(count, 0.0) + end_ms - start_ms
  usual = {n: t for n, t in live.items() if 100 * t >= trace.duration_ms}
  summary = trace_summary.summarize(trace)
  node_hours = summary.node_hours or 1.0  # 0 if no node is ever alive.
  expect = functools.partial(
      expected_samples_per_sec,
      live=usual or live,
      losses_per_node_hour=summary.num_instants / node_hours,
  )
  return max(policies, key=expect)


def expected_samples_per_sec(
    policy: Policy, *, live: Mapping[int, float], losses_per_node_hour: float
) -> float:
  """Returns the expected throughput; 0 if there are too few nodes.

  Args:
    live: Time with each number of live nodes, in any unit.
    losses_per_node_hour: Instants at which nodes are lost, per node and hour.
  """
  starts = {n: _start(policy, n) for n in live}
  trains = {n: t for n, t in live.items() if starts[n].num_training}
  if not trains:
    return 0.0
  mean = sum(n * t for n, t in trains.items()) / sum(trains.values())
  usual = starts[min(trains, key=lambda n: abs(n - mean))]
  victims = usual.layout.pipelines[0].nodes  # The other pipelines are similar.
  lost_secs = [_secs_per_loss(policy, usual, node) for node in victims]
  rate_per_sec = losses_per_node_hour / 3600 * usual.num_training
  # Losses occur while nodes train; during a pause another costs little more.
  lost_share = rate_per_sec * sum(lost_secs) / len(lost_secs)
  samples = sum(t * starts[n].cost.num_samples / starts[n].cost.secs for n, t in trains.items())
  return samples / sum(live.values()) / (1.0 + lost_share)


def _start(policy: Policy, num_nodes: int) -> Places:
  joined = tuple(range(num_nodes))
  return _ask(policy, policy.decider.empty, "boundary", joined=joined).places


def _ask(policy: Policy, places: Places, when: str, **change: Any) -> decisions.PlacedDecision:
  change = ladder_lib.Change(**change)
  return policy.decider.answer(places, change, when=when, find_zones=dict)


def _secs_per_loss(policy: Policy, places: Places, victim: int) -> float:
  """Returns the training time lost by a loss and a later replacement."""
  durations = policy.durations
  answer = _ask(policy, places, "step", lost=frozenset({victim}))
  half_step_secs = places.cost.secs / 2
  secs = durations.detect_secs + answer.delay.secs
  secs += answer.delay.left_share * half_step_secs
  if answer.decision.rolls_back:
    secs += durations.save_every_secs / 2 + durations.save_secs
  elif answer.decision.rung == "reconfigure":
    secs += half_step_secs
  joined = (answer.places.num_places,)
  again = _ask(policy, answer.places, "boundary", joined=joined)
  return secs + again.delay.secs
