"""The rules of a run as a policy of the simulator."""

from collections.abc import Callable, Sequence
import pathlib
from typing import NamedTuple

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.plan import cost_model
from bamboo_jax.sim import decisions, loop, speed as speed_lib, times as times_lib
from bamboo_jax.traces import readers
from bamboo_jax.training.setup import build, build_recovery, sizes


def check(config: config_lib.Config, *, layers: str | None, cluster: str | None) -> None:
  """Checks inputs that would be needed only after minutes of measuring.

  Raises:
    OSError: A file cannot be read.
    ValueError: There is no price, or a file is malformed.
  """
  _find_price(config)
  if layers:
    cost_model.from_json(pathlib.Path(layers).read_text(encoding="utf-8-sig"), source=layers)
  if cluster:
    times_lib.read_measured(cluster)


def _find_price(config: config_lib.Config) -> prices_lib.Price:
  price = sizes.find_price(config)
  if price is None:
    raise ValueError(
        "Dollars are predicted, too, so a node needs a price: give "
        "--config.cost.instance=NAME, such as p3.2xlarge."
    )
  return price


class PolicyRules(NamedTuple):
  """Makes the policy of a run from measured times; and the price of a node."""

  make_policy: Callable[[times_lib.MeasuredTimes], loop.Policy]
  price: prices_lib.Price


def make(config: config_lib.Config, traces: Sequence[str]) -> PolicyRules:
  """Returns the rules of a config; prices of the traces take precedence.

  Prints the step time predicted from the layers alone.
  """
  price = loop.price_on(readers.read_traces(traces), _find_price(config))
  profile = build.make_profile(config, build.make_task(config))
  templates = build_recovery.make_templates(config, profile, is_cluster=True)
  num_stages = templates[0].partition.num_stages if templates else None
  plan = build.make_plan(config, profile, is_cluster=True, num_stages=num_stages)
  rules = build_recovery.make_rules(config, plan, templates)
  speed = speed_lib.ProfileSpeed(
      profile,
      num_microbatches=plan.batch.total_microbatches,
      microbatch_size=plan.batch.microbatch_size,
      redundant=config.redundancy,
      reroute=rules.ladder.reroute,
  )
  whole = rules.planner.fresh(base.nodes(plan.num_pipelines * plan.num_stages), {})
  predicted_secs = speed.step(whole, drops=False).secs
  print(f"step_ms_from_layers={1e3 * predicted_secs:.1f}")

  def make_policy(measured: times_lib.MeasuredTimes) -> loop.Policy:
    durations = measured.durations
    times = times_lib.PipelineTimes(
        times_lib.MeasuredSpeed(speed, measured, whole=whole),
        durations,
        drops=config.recovery.drop,
        profile=None,  # The durations include copies.
    )
    decider = decisions.Decider(rules.ladder, rules.planner, times)
    market = config.cost.market
    return loop.Policy("predicted", decider, durations, market=market)

  return PolicyRules(make_policy, price)
