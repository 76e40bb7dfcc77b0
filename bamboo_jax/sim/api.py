"""A run of a policy on a trace in one call: `docs/research/simulator.md`."""

from collections.abc import Sequence
import os
from typing import Any

from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.sim import (
    forecast as forecast_lib,
    loop,
    policies as policies_lib,
    presets,
    times as times_lib,
)
from bamboo_jax.traces import generator, parameters as trace_parameters, readers, trace as trace_lib

_DURATIONS = times_lib.Durations()


def simulate(
    trace: trace_lib.Trace,
    policy: str | policies_lib.Settings | loop.Policy,
    *,
    workload: policies_lib.Workload | None = None,
    durations: times_lib.Durations = _DURATIONS,
    price: prices_lib.Price | None = None,
    keep_moments: bool = False,
) -> loop.Outcome:
  """Returns the outcome of a policy on a trace.

  Args:
    trace: Also the forecast of policies that plan for one.
    policy: A name, see `presets.find`, or settings. A policy made by
      `make_policy` caches its plans, which take most of the time.
    workload: By default `presets.make_workload`.
    price: By default that of a p3.2xlarge in 2021, which Bamboo used.
    keep_moments: Whether the outcome has the course of the run.

  Raises:
    ValueError: Settings do not fit, or there are never enough nodes.
  """
  if not isinstance(policy, loop.Policy):
    policy = make_policy(policy, trace, workload=workload, durations=durations)
  price = price or prices_lib.find_price("p3.2xlarge", date="2021")
  return loop.simulate(trace, policy, price, keep_moments=keep_moments)


def make_policy(
    policy: str | policies_lib.Settings,
    trace: trace_lib.Trace,
    *,
    workload: policies_lib.Workload | None = None,
    durations: times_lib.Durations = _DURATIONS,
) -> loop.Policy:
  """Returns a policy that can be simulated repeatedly; see `simulate`."""
  if isinstance(policy, str):
    name, settings = policy, presets.find(policy)
  else:
    name, settings = "policy", policy
  workload = workload or presets.make_workload()
  choices = policies_lib.make_choices(name, settings, workload, durations)
  return forecast_lib.choose(choices, trace)


def read_trace(*paths: str | os.PathLike[str]) -> trace_lib.Trace:
  """Returns the trace of a file, or of one file per zone."""
  return readers.read_traces(paths)


def generate_trace(*, seed: int = 0, **parameters: Any) -> trace_lib.Trace:
  """Returns a random trace; see `traces.parameters.Parameters`."""
  return generator.generate_trace(trace_parameters.Parameters(**parameters), seed=seed)


def list_policies() -> Sequence[str]:
  """Returns the policy names that `simulate` accepts."""
  return sorted({*presets.POLICIES, *presets.PLANNERS, *presets.OWN})
