"""A run of a policy on a trace in one call: `docs/research/simulator.md`."""

from collections.abc import Mapping
import os
from typing import Any

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.recovery import policies
from bamboo_jax.sim import build, decisions, loop
from bamboo_jax.traces import generator, readers, trace as trace_lib

# A model like GPT-2 medium, on a V100 and 10 Gbit/s for each node.
JOB: Mapping[str, Any] = {
    "pipeline.num_pipelines": 4,
    "pipeline.num_stages": 8,
    "pipeline.num_microbatches": 16,
    "pipeline.microbatch_size": 8,
    "plan.profile": "configs/sim/gpt2_medium.json",
    "cost.instance": "p3.2xlarge",
    "cost.date": "2021",  # As Bamboo used.
}


def simulate(
    trace: trace_lib.Trace,
    policy: str | decisions.Policy,
    config: config_lib.Config | None = None,
    *,
    costs: build.Costs | None = None,
    price: prices_lib.Price | None = None,
    keep_moments: bool = False,
) -> loop.Outcome:
  """Returns the outcome of a policy on a trace.

  Args:
    trace: Also the forecast of policies that plan for one.
    policy: A name, see `recovery.policies.find`. A policy made by `make_policy` caches
      its plans, which take most of the time.
    config: Of the run; by default `JOB`.
    costs: By default those in the file that the config names.
    price: By default that of `config.cost`, or of a p3.2xlarge in 2021, which Bamboo used.
    keep_moments: Whether the outcome has the course of the run.

  Raises:
    ValueError: Options do not fit, or there are never enough nodes.
  """
  if not isinstance(policy, decisions.Policy):
    policy = make_policy(policy, trace, config, costs=costs)
  price = price or prices_lib.find_or_standard((config or config_lib.Config()).cost)
  return loop.simulate(trace, policy, price, keep_moments=keep_moments)


def make_policy(
    policy: str,
    trace: trace_lib.Trace,
    config: config_lib.Config | None = None,
    *,
    costs: build.Costs | None = None,
) -> decisions.Policy:
  """Returns a policy that can be simulated repeatedly; see `simulate`."""
  config = policies.apply(config or config_lib.Config().changed(JOB), policies.find(policy))
  costs = costs or build.read_costs(config)
  if costs is None:
    raise ValueError("config.plan.profile must name a file of `bamboo profile`, or give `costs`.")
  return build.choose(build.make_choices(policy, config, costs), trace)


def read_trace(*paths: str | os.PathLike[str]) -> trace_lib.Trace:
  """Returns the trace of a file, or of one file per zone."""
  return readers.read_traces(paths)


def generate_trace(*, seed: int = 0, **options: Any) -> trace_lib.Trace:
  """Returns a random trace; the options are those of `config.study.trace`."""
  return generator.generate_trace(config_lib.TraceSection(**options), seed=seed)


def list_policies() -> list[str]:
  """Returns the policy names that `simulate` accepts."""
  return sorted(policies.POLICIES)
