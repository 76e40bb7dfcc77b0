"""Policies on one trace, and over settings of a field, on one trace or many."""

from collections.abc import Mapping, Sequence
import dataclasses
import numbers
import pathlib
import statistics
import time
from typing import Any

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import account as account_lib, prices as prices_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.experiments import output, sweep as sweep_lib
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.recovery import policies as policies_lib
from bamboo_jax.report import contents
from bamboo_jax.report.live import words
from bamboo_jax.sim import build, loop
from bamboo_jax.traces import generator, readers, scale, trace as trace_lib

Config = config_lib.Config

# Kinds of node time by cause of a gap, see `split_gap`.
_GAP_KINDS = {"pauses": ("recovery", "checkpoint", "restart"), "lost": ("lost",), "idle": ("idle",)}
CAUSES = ("layout", "redundancy", *_GAP_KINDS)
# Of the columns of `summary.csv`, by name and title.
_SHOWN = (
    *("policy", "setting", "throughput_samples_per_sec", "cost_usd_per_hour"),
    *("value", "value_ci95", "fatal_failures", "dropped_pct"),
)
_GAPS = (
    *("policy", "setting", "gap_pct"),
    *(f"gap_{cause}_pct" for cause in CAUSES),
    "worst_gap_pct",
)
_TABLES = (
    ("policies", "Policies, the best value first", _SHOWN),
    ("gaps", "Gap to the best policy, percent of its value, by cause", _GAPS),
)
_GENERATED = "study.trace"
_NAMES = {
    "study.trace.hazard_per_node_hour": "preemptions per node and hour",
    "study.trace.hours": "length of the trace (h)",
    "study.trace.zone_correlation": "probability that a second zone is hit",
}
# Of other fields, by the suffix of their name.
_UNITS = {"_secs": "s", "_gib": "GiB", "_ms": "ms", "_per_sec": "1/s"}


@dataclasses.dataclass(frozen=True)
class Preemptions:
  """Files of a trace, as for `bamboo cluster`; without files a trace is generated."""

  files: tuple[str, ...] = ()
  time_scale: float = 1.0
  num_nodes: int | None = None

  def read(self, config: Config) -> trace_lib.Trace:
    if not self.files:
      return generator.generate_trace(config.study.trace, seed=config.seed)
    trace = readers.read_traces(self.files)
    return scale.scale(trace, num_nodes=self.num_nodes, time_scale=1 / self.time_scale)


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Values of an option of the config; generated traces have `num_seeds` each."""

  field: str = "study.trace.hazard_per_node_hour"
  values: tuple[Any, ...] = ()
  num_seeds: int = 5


@dataclasses.dataclass(frozen=True)
class Play:
  """One trace at one setting, a value in the config, as text; None for the main trace."""

  config: Config
  preemptions: Preemptions
  setting: str | None = None


def run(
    config: Config,
    policies: Sequence[str],
    *,
    workdir: pathlib.Path,
    preemptions: Preemptions,
    sweep: Sweep = Sweep(),
    formats: Sequence[str] = ("png",),
    where: sweep_lib.Where = sweep_lib.HERE,
) -> None:
  """Writes `summary.csv` and the report, and prints the table.

  Raises `ValueError` for an option that does not fit, or as `sweep.run`.
  """
  if config.cost.instance is None:
    name = prices_lib.STANDARD.instance
    print(f"note: nodes are charged as {name}; --config.cost.instance names another")
  if not (config.plan.profile or config.plan.machine or config.study.table.file):
    print(
        "note: layers take what they would on this machine; --config.plan.machine=p3.2xlarge is "
        "another"
    )
  if sweep.values and preemptions.files and sweep.field.startswith((_GENERATED, "seed")):
    raise ValueError(
        f"--sweep={sweep.field} changes how traces are generated, so it has no effect with --trace."
    )
  plays = [Play(config, preemptions)]
  for value in sweep.values:
    one = config.changed({sweep.field: value})
    seeds = range(1 if preemptions.files else sweep.num_seeds)
    plays += [Play(one.changed({"seed": one.seed + i}), preemptions, str(value)) for i in seeds]
  trace = preemptions.read(config)
  for one in {play.setting: play for play in plays}.values():  # Raises errors before all runs.
    prices_lib.find_or_standard(one.config.cost)
    for policy in policies:
      _find_choices(policy, one)
  inputs = sweep_lib.digest_code({**config.to_dict(), "policies": policies})
  jobs = [(policy, one) for policy in policies for one in plays]
  describe = lambda job: {"policy": job[0]}
  results = [*sweep_lib.run(play, jobs, where, inputs=inputs, describe=describe)]
  outcomes: dict[str, list[loop.Outcome]] = {policy: [] for policy in policies}
  for (policy, _), (outcome, _) in zip(jobs, results, strict=True):
    outcomes[policy].append(outcome)
  num_events = sum(outcome.num_events for outcome, _ in results)
  cpu_secs = sum(secs for _, secs in results)
  print(f"runs={len(results)} events={num_events} cpu_secs={cpu_secs:.1f}")
  settings: dict[str | None, dict[str, list[loop.Outcome]]] = {}
  for policy, found in outcomes.items():
    for one, outcome in zip(plays[1:], found[1:], strict=True):
      settings.setdefault(one.setting, {}).setdefault(policy, []).append(outcome)
  rows = _rows(trace.name, "", {p: found[:1] for p, found in outcomes.items()})
  for setting, some in settings.items():
    rows += _rows(sweep.field, setting, some)
  output.write_summary(workdir, table_lib.of(rows))
  tables = {name: table_lib.of(rows, title, columns) for name, title, columns in _TABLES}
  runs = {policy: found[0] for policy, found in outcomes.items()}
  ranked = sorted(runs.items(), key=lambda run: run[1].account.value, reverse=True)
  costs = config.study.table.file or config.plan.profile
  model = costs or words.describe_model(config.to_dict())
  own = [f"{k}={v}" for k, v in json_lib.flatten(config.study.to_dict()).items() if v is not None]
  report = contents.make(
      f"Policies on trace {trace.name}",
      [contents.simulated(policy, run, model) for policy, run in ranked],
      remarks=[
          f"Config {config.name}: {', '.join(own)}.",
          f"Costs are {'those of ' + costs if costs else 'estimated, not measured'}. All policies "
          "see the same trace; nodes on demand are not preempted. The best value comes first.",
          "A run over time shows the current throughput, including steps that are rolled back "
          "later; sums exclude those. Events before the first training are its start.",
          *(f"Trace: {note}." for note in trace.notes),
      ],
      tables=tables,
      series=_series(rows, sweep),
  )
  contents.write(workdir, report, formats if config.metrics.plots else ())
  for table in tables.values():
    print(f"\n{table['title']}:\n{table_lib.to_markdown(table)}")


_MADE: dict[tuple[str, str], tuple[loop.Policy, ...]] = {}


def _find_choices(policy: str, play: Play) -> tuple[loop.Policy, ...]:
  """Returns the candidates for a policy, which keep their plans from play to play."""
  policies_lib.load_plugins(play.config.plugins)
  config = policies_lib.apply(play.config, policies_lib.find(policy))
  key = policy, repr(config.changed({_GENERATED: config_lib.TraceSection(), "seed": 0}))
  if key not in _MADE:
    _MADE[key] = build.make_choices(policy, config, find_costs(config))
  return _MADE[key]


def find_costs(config: Config) -> build.Costs:
  """Returns the costs in the config's file, or estimates those of its model."""
  if (costs := build.read_costs(config)) is not None:
    return costs
  from bamboo_jax.training.setup import build as run_build  # Imports JAX.

  return run_build.make_profile(config, run_build.make_task(config, needs_data=False))


def play(job: tuple[str, Play]) -> tuple[loop.Outcome, float]:
  """Returns the outcome of a policy on a trace, and its CPU time in seconds."""
  start = time.process_time()
  name, one = job
  trace = one.preemptions.read(one.config)
  policy = build.choose(_find_choices(name, one), trace)
  price = prices_lib.find_or_standard(one.config.cost)
  outcome = loop.simulate(trace, policy, price, keep_moments=one.setting is None)
  return outcome, time.process_time() - start


def _rows(
    field: str, setting: str | None, outcomes: Mapping[str, Sequence[loop.Outcome]]
) -> list[output.Row]:
  """Returns the lines of `summary.csv` of a setting: means, the policy of most value first.

  Gaps are relative to the best policies with the same price that keep all
  samples: the mean gap to the one with the highest mean, the worst gap to the
  one that is best on a trace, of each in percent of its value.
  """
  mean, rows = statistics.fmean, list[output.Row]()
  accounts = {policy: [outcome.account for outcome in found] for policy, found in outcomes.items()}
  ranked = sorted(
      outcomes, key=lambda policy: mean(a.value for a in accounts[policy]), reverse=True
  )
  whole = [p for p in ranked if not any(o.num_dropped for o in outcomes[p])]
  rivals = [accounts[policy] for policy in whole or ranked]
  rivals = [r for r in rivals if r[0].market == rivals[0][0].market]
  best = [max(rival.value for rival in of_seed) for of_seed in zip(*rivals, strict=True)]
  for policy in ranked:
    own, found = accounts[policy], outcomes[policy]
    gaps = worst = None
    if own[0].market == rivals[0][0].market:
      gaps = mean_gap(own, rivals[0])
      pairs = zip(own, best, strict=True)
      worst = max(100 * (1 - a.value / b) if b else 0.0 for a, b in pairs)
    num_samples, usd = (sum(getattr(a, name) for a in own) for name in ("num_samples", "usd"))
    # The first one is the start.
    num_restarts = sum(max(0, o.rungs.get("checkpoint", 0) - 1) for o in found)
    shares = [a.node_time.shares() for a in own]
    rows.append(
        {
            "policy": policy,
            "field": field,
            "setting": setting,
            "num_runs": len(found),
            **output.estimates({"throughput_samples_per_sec": [a.samples_per_sec for a in own]}),
            "cost_usd_per_hour": mean(a.usd_per_hour for a in own),
            **output.estimates({"value": [a.value for a in own]}),
            "usd_per_million_samples": 1e6 * usd / num_samples if num_samples else None,
            "fatal_failures": mean(o.num_rollbacks for o in found),
            "restarts_per_hour": num_restarts / (sum(a.secs for a in own) / 3600),
            "dropped_pct": 100 * mean(o.dropped_share for o in found),
            **{f"{kind}_pct": 100 * mean(s[kind] for s in shares) for kind in account_lib.KINDS},
            "gap_pct": sum(gaps.values()) if gaps else None,
            **{f"gap_{c}_pct": gaps[c] if gaps else None for c in CAUSES},
            "worst_gap_pct": worst,
        }
    )
  return rows


def _find_pace(account: account_lib.Account) -> tuple[float, float, float]:
  """Returns the share of training time, samples per node-second in it, and without redundancy."""
  shares = account.node_time.shares()
  trains = sum(shares[kind] for kind in account_lib.TRAINING)
  rate = account.num_samples / (account.node_secs * trains)
  return trains, rate, rate / (1.0 - shares["redundant"] / trains)


def split_gap(account: account_lib.Account, best: account_lib.Account) -> dict[str, float]:
  """Splits the gap between a policy and the best one, in percent of the samples of `best`.

  Samples per node-second are the share of time in which nodes train, T, times
  their throughput meanwhile, r. With S the redundant share of T, a policy without
  redundancy would train r / (1 - S).

    pauses      less T: recovery, restarts, checkpoints
    lost        less T: training that was rolled back
    idle        less T: nodes without a stage
    redundancy  less r: redundant passes, refresh of replicas
    layout      less r: bubbles, sums of gradients, updates in each pipeline

  A difference of T is weighted with the mean r of both, and one of r with the
  mean T. Both must have trained. A cause in which `account` is ahead is negative; the
  sum is the gap in samples per node-second.
  """
  (my_trains, my_rate, my_bare), (trains, rate, bare) = map(_find_pace, (account, best))
  whole, layout = trains * rate, bare - my_bare
  redundancy = rate - my_rate - layout
  trains, rate = (my_trains + trains) / 2, (my_rate + rate) / 2
  parts = {"layout": trains * layout, "redundancy": trains * redundancy}
  shares, best_shares = account.node_time.shares(), best.node_time.shares()
  for cause, kinds in _GAP_KINDS.items():
    parts[cause] = rate * sum(shares[k] - best_shares[k] for k in kinds)
  return {cause: 100 * part / whole for cause, part in parts.items()}


def mean_gap(
    accounts: Sequence[account_lib.Account], best: Sequence[account_lib.Account]
) -> dict[str, float] | None:
  """Returns the mean over seeds; None if a run has not trained."""
  pairs = list(zip(accounts, best, strict=True))
  if not all(a.num_samples and b.num_samples for a, b in pairs):
    return None
  gaps = [split_gap(a, b) for a, b in pairs]
  return {c: statistics.fmean(gap[c] for gap in gaps) for c in CAUSES}


def name_field(field: str) -> str:
  """Returns the label of an axis for an option, with its unit."""
  for ending, unit in _UNITS.items():
    if field.endswith(ending):
      return f"{field.removesuffix(ending)} ({unit})"
  return _NAMES.get(field, field)


def _series(rows: Sequence[output.Row], sweep: Sweep) -> dict[str, contents.Value]:
  """Returns value against the settings of the swept option, if these are numbers."""
  if not sweep.values or not all(isinstance(value, numbers.Real) for value in sweep.values):
    return {}
  lines: dict[str, list[Any]] = {}
  for value in sorted(sweep.values):
    for row in rows:
      if (row["field"], row["setting"]) == (sweep.field, str(value)):
        lines.setdefault(str(row["policy"]), []).append(output.point(value, row, "value"))
  note = output.explain_bars(
      int(row["num_runs"] or 0) for row in rows if row["field"] == sweep.field
  )
  return {"value": contents.series(name_field(sweep.field), lines, note=note)}
