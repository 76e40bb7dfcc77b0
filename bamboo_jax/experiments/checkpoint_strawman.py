"""Checkpoint and restart, with the times that Bamboo's authors measured.

In the paper (NSDI'23) that loses 77 % of the time. Here our simulator plays it
with the constants of the run in the artifact's history: pipelines of 16 nodes,
the rest waits; a save begins when the last one is done; a loss in a pipeline,
or enough nodes for one more, restarts everything.
"""

from collections.abc import Iterator, Mapping, Sequence
import csv
import pathlib
import statistics

import ml_collections

from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.experiments import output
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.recovery import places as places_lib
from bamboo_jax.recovery import planner as planner_lib
from bamboo_jax.recovery import shapes as shapes_lib
from bamboo_jax.sim import decisions
from bamboo_jax.sim import durations as durations_lib
from bamboo_jax.sim import loop
from bamboo_jax.sim import throughput_table
from bamboo_jax.sim import times as times_lib
from bamboo_jax.traces import generator
from bamboo_jax.traces import parameters as trace_parameters
from bamboo_jax.traces import readers
from bamboo_jax.traces import scale
from bamboo_jax.traces import trace as trace_lib

_MEASURED = output.PUBLISHED / "bamboo_checkpoint_baseline.csv"
_INSTANCE = "p3.2xlarge"
_SHARES = ("useful", "lost", "restart", "idle")
_ALWAYS_SECS = 1e9  # Horizon in which any change pays.


def run(
    config: ml_collections.ConfigDict,
    *,
    workdir: pathlib.Path,
    trace: str | None,
) -> None:
  """Writes `summary.csv`; prints where the nodes' time went."""
  rows = []
  for time_scale in config.time_scales:
    for restart_secs in config.restart_secs:
      policy = make_policy(config, restart_secs)
      outcomes = [
          loop.simulate(found, policy, _price())
          for found in _traces(config, trace, time_scale)
      ]
      rows.append(_row(outcomes, time_scale, restart_secs))
  output.write_summary(workdir, rows)
  print(output.render_rows(rows))
  print(f"\n{workdir / 'summary.csv'}")


def make_policy(
    config: ml_collections.ConfigDict, restart_secs: float
) -> loop.Policy:
  """Returns checkpoint and restart as it was measured.

  Raises:
    OSError: The measured times cannot be read.
    ValueError: They do not fit.
  """
  measured = _read_measured()
  table = throughput_table.Table(
      _MEASURED.name,
      config.samples_per_step,
      {n: config.samples_per_step / secs for n, secs in measured.items()},
  )
  durations = durations_lib.Durations(
      boot_secs=config.boot_secs,
      detect_secs=0.0,
      restart_secs=restart_secs,
      load_secs=0.0,
      save_secs=config.save_secs,
      stall_secs=0.0,
      save_every_secs=config.save_secs,
  )
  ladder = ladder_lib.Ladder(
      shadow=False,
      reroute="none",
      reconfigure=False,
      fold=False,
      horizon_secs=_ALWAYS_SECS,
  )
  shapes = shapes_lib.Depth(
      partition_lib.Partition(tuple(range(config.num_stages + 1))),
      max_pipelines=max(measured) // config.num_stages,
  )
  times = times_lib.Times(
      throughput_table.TableSpeed(table), durations, drops=False, profile=None
  )
  planner = planner_lib.Planner(
      shapes,
      places_lib.Placer("order", has_replicas=False),
      times,
      fold=ladder.fold,
  )
  return loop.Policy(
      name="checkpoint_strawman",
      decider=decisions.Decider(ladder, planner, times),
      durations=durations,
  )


def _read_measured() -> Mapping[int, float]:
  """Returns the time of a step in seconds, by number of nodes."""
  with _MEASURED.open(encoding="utf-8", newline="") as file:
    return {
        int(row["nodes"]): float(row["median_or_mean"])
        for row in csv.DictReader(file)
        if row["quantity"].startswith("iteration")
    }


def _price() -> prices_lib.Price:
  return prices_lib.find_price(prices_lib.load_prices(), _INSTANCE)


def _traces(
    config: ml_collections.ConfigDict, path: str | None, time_scale: float
) -> Iterator[trace_lib.Trace]:
  """Yields the recorded trace, or a drawn one for each seed."""
  if path is not None:
    found = readers.read_traces([path])
    yield scale.scale(found, num_nodes=config.num_nodes, time_scale=time_scale)
    return
  parameters = trace_parameters.Parameters(
      nodes_per_zone=(config.num_nodes,),
      hours=config.generated.hours,
      hazard_per_node_hour=config.generated.hazard_per_node_hour,
      bulk_sizes=tuple(config.generated.bulk_sizes),
      reacquire_secs=config.generated.reacquire_secs,
  )
  for seed in range(config.generated.num_seeds):
    drawn = generator.generate_trace(parameters, seed=seed)
    yield scale.scale_time(drawn, time_scale)


def _row(
    outcomes: Sequence[loop.Outcome], time_scale: float, restart_secs: float
) -> output.Row:
  accounts = [outcome.account for outcome in outcomes]
  hours = sum(account.secs for account in accounts) / 3600
  shares = {
      kind: statistics.fmean(a.node_time.shares()[kind] for a in accounts)
      for kind in _SHARES
  }
  in_pipelines = 1.0 - shares["idle"]
  if not in_pipelines:
    raise ValueError(
        f"No pipeline ever starts: the trace lasts {accounts[0].secs:g} s and "
        f"has {accounts[0].num_nodes:g} nodes on average."
    )
  restarts = sum(outcome.rungs.get("checkpoint", 0) for outcome in outcomes)
  return {
      "policy": outcomes[0].policy,
      "time_scale": time_scale,
      "restart_secs": restart_secs,
      "restarts_per_hour": restarts / hours,
      "num_nodes": statistics.fmean(a.num_nodes for a in accounts),
      "throughput_samples_per_sec": statistics.fmean(
          a.samples_per_sec for a in accounts
      ),
      **{f"{kind}_pct": 100 * share for kind, share in shares.items()},
      # Of the time of nodes that are in a pipeline.
      "time_lost_pct": 100 * (1.0 - shares["useful"] / in_pipelines),
  }
