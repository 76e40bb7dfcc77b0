"""Oobleck's evaluation in our own simulator, from the same throughput table.

Only throughput by number of nodes and the times of changes are as published. So
effects that the artifact omits cost time: training stops while nodes are
reassigned, no stale timer remains, added nodes are used as soon as that pays,
and the downtime at the end counts.
"""

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.recovery import policies
from bamboo_jax.reproductions.bamboo import loop as artifact_loop, rules as bamboo_rules
from bamboo_jax.reproductions.oobleck import inputs
from bamboo_jax.sim import build, loop, speed as speed_lib
from bamboo_jax.traces import trace as trace_lib

Model, Trace = inputs.Model, trace_lib.Trace

# Oobleck needs two pipelines for every layer to have a second copy, so its
# pipelines may be half as long as the smallest measured number of nodes.
_LEAST_STAGES = {"oobleck": 7, "varuna": 12, "bamboo": 12}
_CHECKPOINT_EVERY = 10  # Steps of all nodes.
# Placeholder: costs are not used.
_PRICE = prices_lib.Price(
    instance="none", on_demand_usd_per_hour=1.0, spot_usd_per_hour=1.0, source="none", date="2023"
)


def simulate(model: Model, system: str, trace: Trace) -> float | None:
  """Returns samples per second from the start of training to the trace's end.

  None if the system cannot run the model, 0 if it never trains.
  """
  if system not in model.throughput:
    return None
  config = config_lib.Config().changed(
      {"pipeline.num_stages": _LEAST_STAGES[system], "study.durations": _durations(model, system)}
  )
  config = policies.apply(config, policies.find(f"{system}+grid"))
  table = _table(model, system, trace.num_nodes)
  (policy,) = build.make_choices(system, config.changed({"study.reroute": "shares"}), table)
  outcome = loop.simulate(trace, policy, _PRICE, keep_moments=True)
  starts = [m.secs for m in outcome.moments if m.samples_per_sec]
  if not starts:
    return 0.0
  return outcome.account.num_samples / (trace.duration_ms / 1e3 - starts[0])


def _table(model: Model, system: str, most: int) -> speed_lib.Table:
  """Returns the throughput for up to `most` nodes.

  Beyond the largest measured number of nodes it is constant.
  """
  rates = {
      nodes: 1e3 * model.samples_per_step / model.step_ms(system, nodes)
      for nodes in range(1, most + 1)
  }
  name = f"{system}, {model.name}"
  return speed_lib.Table(name, model.samples_per_step, rates)


def _durations(model: Model, system: str) -> config_lib.DurationsSection:
  """Returns the published times.

  The artifact has no checkpoints of Oobleck and Bamboo; here they have the
  interval and duration of Varuna's, but do not stop training.
  """
  reconfigure_ms, restart_ms = {
      "oobleck": (model.reconfigure_ms, model.reconfigure_ms),
      "varuna": (0, model.restart_ms),  # Never reconfigures.
      "bamboo": (model.local_ms, bamboo_rules.GLOBAL_MS),
  }[system]
  checkpoint_secs = model.checkpoint_ms / 1e3
  step_secs = model.step_ms("varuna", inputs.MAX_NODES) / 1e3
  return config_lib.DurationsSection(
      boot_secs=artifact_loop.CREATION_MS / 1e3,
      detect_secs=0.0,
      repair_secs=reconfigure_ms / 1e3,
      reconfigure_secs=reconfigure_ms / 1e3,
      restart_secs=restart_ms / 1e3,
      load_secs=0.0,
      save_secs=checkpoint_secs,
      stall_secs=checkpoint_secs if system == "varuna" else 0.0,
      save_every_secs=_CHECKPOINT_EVERY * step_secs + checkpoint_secs,
  )
