"""Runtime and simulator take the same decisions on the same events.

The runtime's membership is driven with an engine that only notes who owns what;
what it decides is what decides about real arrays, see `train_failover_test`.
"""

import dataclasses
import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax import base
from bamboo_jax.accounting import prices
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.schedule import failover
from bamboo_jax.sim import durations as durations_lib
from bamboo_jax.sim import loop
from bamboo_jax.sim import policies
from bamboo_jax.sim import throughput_table
from bamboo_jax.traces import trace as trace_lib
from bamboo_jax.train import membership as membership_lib

_PIPELINES, _STAGES = 2, 4
_NODES = _PIPELINES * _STAGES
_STEP_SECS = 10.0
_PRICE = prices.Price(
    instance="node",
    on_demand_usd_per_hour=3.0,
    spot_usd_per_hour=1.0,
    source="test",
    date="2026",
)


class FakeEngine:
  """Owners and shadows, and nothing behind them."""

  def __init__(self):
    self.owners = [
        tuple(range(d * _STAGES, (d + 1) * _STAGES)) for d in range(_PIPELINES)
    ]
    self.shadows = [{} for _ in self.owners]

  def set_roles(self, pipeline, *, owners, shadows):
    del shadows
    self.owners[pipeline] = owners

  def holdings(self, pipeline):
    del pipeline
    return {}

  def drain(self, pipeline):
    del pipeline

  def load_programs(self, node, stage):
    del node, stage


@dataclasses.dataclass(frozen=True)
class FakePlan:
  partition: partition_lib.Partition


@dataclasses.dataclass(frozen=True)
class FakeRows:
  """Says what roles a run starts with, like `plan.rows.RowPlanner`."""

  plan: FakePlan
  mode: str

  def roles(self, pipeline):
    first = pipeline * _STAGES
    roles = failover.Roles.initial(range(first, first + _STAGES))
    return roles if self.mode != "none" else roles.without_replicas()


def run_membership(deaths, *, num_spares, mode, rereplicate):
  """Returns what the runtime does about deaths, each in a step of its own.

  For each, the rung, and the owners after the failover and after the repair; a
  restart ends it.
  """
  membership = membership_lib.Membership(
      FakeEngine(),
      rows=FakeRows(
          FakePlan(partition_lib.Partition(tuple(range(_STAGES + 1)))), mode
      ),
      spares=range(_NODES, _NODES + num_spares),
      rereplicate=rereplicate,
  )
  course = []
  for step, lost in enumerate(deaths):
    try:
      is_hit = bool(membership.fail_over(lost))
    except base.UnrecoverableHereError:
      return [*course, "checkpoint"]
    failed_over = [roles.owners for roles in membership.roles]
    if is_hit:
      with mock.patch.object(replicas, "copy_state"):
        membership.repair(step)
    repaired = [roles.owners for roles in membership.roles]
    course.append(("shadow" if is_hit else "none", failed_over, repaired))
  return course


@functools.cache
def make_policy(mode, rereplicate):
  """Returns a policy, which remembers its answers from run to run."""
  # As fast with any nodes, so that new pipelines never pay.
  rates = {n: 1.0 for n in range(1, 3 * _NODES)}
  return policies.make_policy(
      "policy",
      policies.Settings(
          rungs=("shadow", "checkpoint") if mode != "none" else ("checkpoint",),
          placement="order",
          rereplicate=rereplicate,
      ),
      policies.Workload(
          costs=throughput_table.Table(
              "table",
              _STEP_SECS,
              rates,
              doubled_factor=1.0,
              redone_share=0.0,
          ),
          num_stages=_STAGES,
      ),
      # Without pauses all deaths come in the middle of a step.
      durations_lib.Durations(
          boot_secs=0.0, detect_secs=0.0, repair_secs=0.0, stall_secs=0.0
      ),
  )


def run_simulator(deaths, *, num_spares, mode, rereplicate):
  """Returns the same as `run_membership`, from a simulation."""
  names = [f"node{n}" for n in range(_NODES + num_spares)]
  events = [trace_lib.Event(0, "add", name) for name in names[:_NODES]]
  events += [trace_lib.Event(1, "add", name) for name in names[_NODES:]]
  for i, lost in enumerate(deaths, 1):
    at_ms = 1_000_000 * i + 3_000
    events += [trace_lib.Event(at_ms, "remove", names[n]) for n in sorted(lost)]
  trace = trace_lib.Trace("trace", tuple(events), duration_ms=100_000_000)
  outcome = loop.simulate(
      trace, make_policy(mode, rereplicate), _PRICE, keep_moments=True
  )
  course = []
  for i in range(1, len(deaths) + 1):
    first, *_, last = [m for m in outcome.moments if m.secs // 1000 == i] * 2
    if first.rung in ("checkpoint", "wait"):
      return [*course, "checkpoint"]
    course.append((first.rung, _owners(first), _owners(last)))
  return course


def _owners(moment):
  return [
      tuple(int(name.removeprefix("node")) for name in pipeline)
      for pipeline in moment.owners
  ]


class SameDecisionsTest(parameterized.TestCase):

  @parameterized.product(
      mode=["none", "lazy"], rereplicate=["at_commit", "at_repair"]
  )
  def test_random_deaths(self, mode, rereplicate):
    @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
    @hypothesis.given(
        st.integers(0, 3),
        st.permutations(range(_NODES + 3)),
        st.lists(st.integers(1, 3), max_size=5),
    )
    def check(num_spares, order, sizes):
      order = [node for node in order if node < _NODES + num_spares]
      deaths = []
      for size in sizes:
        deaths.append(set(order[:size]))
        del order[:size]
      deaths = [lost for lost in deaths if lost]
      options = dict(num_spares=num_spares, mode=mode, rereplicate=rereplicate)
      self.assertEqual(
          run_simulator(deaths, **options), run_membership(deaths, **options)
      )

    check()

  def test_an_example(self):
    options = dict(num_spares=1, mode="lazy", rereplicate="at_commit")
    expected = [
        ("shadow", [(0, 1, 1, 3), (4, 5, 6, 7)], [(0, 1, 8, 3), (4, 5, 6, 7)]),
        ("shadow", [(0, 1, 8, 3), (7, 5, 6, 7)], [(0, 1, 8, 3), (7, 5, 6, 7)]),
        "checkpoint",
    ]
    for run in (run_membership, run_simulator):
      self.assertEqual(run([{2}, {4}, {0, 1}], **options), expected)


if __name__ == "__main__":
  absltest.main()
