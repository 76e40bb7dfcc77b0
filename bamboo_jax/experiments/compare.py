"""All policies on one trace, and over many traces at several settings."""

from collections.abc import Iterator, Mapping, Sequence
import copy
import dataclasses
import json
import math
import pathlib
import statistics
import time
from typing import Any, NamedTuple

import ml_collections

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.experiments import compare_report, gap, output, sweep as sweep_lib, unused
from bamboo_jax.sim import build, forecast, loop, presets

_SHOWN = (
    *("policy", "setting", "throughput_samples_per_sec", "cost_usd_per_hour"),
    *("value", "value_ci95", "fatal_failures", "dropped_pct"),
)
_GAPS = (
    *("policy", "setting", "gap_pct"),
    *(f"gap_{cause}_pct" for cause in gap.CAUSES),
    "worst_gap_pct",
)
_NUM_JOBS = 32


@dataclasses.dataclass(frozen=True)
class Play:
  """One trace at one setting.

  Attributes:
    config: Includes the setting.
    path: File of the trace; None if it is generated.
    setting: Value of the swept field; None for the main trace.
  """

  config: build.Config
  path: str | None
  seed: int
  setting: Any = None


@dataclasses.dataclass(frozen=True)
class PolicyJob:
  """Plays of one policy, which share its plans."""

  policy: str
  plays: tuple[Play, ...]


def run(
    config: ml_collections.ConfigDict,
    *,
    workdir: pathlib.Path,
    trace: str | None,
    formats: Sequence[str] = ("png",),
    where: sweep_lib.Where = sweep_lib.HERE,
) -> None:
  """Writes `summary.csv` and `report.html`, and prints the table.

  Raises `ValueError` for a setting that does not fit, or as `sweep.run`.
  """
  plain = json.loads(config.to_json())
  build.load_plugins(plain)
  plain["policies"] |= {
      name: dataclasses.asdict(settings) for name, settings in presets.OWN.items()
  }
  if not plain["policies"]:
    raise ValueError("config.policies must have a policy, got none.")
  plays = tuple(make_sweep(plain, trace))
  plain = build.place(plain)
  plays = (Play(plain, trace, config.seed), *plays)
  name = build.make_trace(plain, path=trace, seed=config.seed).name
  build.make_price(plain)  # Raises errors here rather than in a worker.
  for policy in plain["policies"]:
    build.make_choices(plain, policy)
  if plain["sweep"]["values"] and len(plays) == 1:
    print(
        f"note: --trace={trace} is played alone, without the sweep of "
        f"{plain['sweep']['field']}, which changes how traces are generated."
    )
  inputs = [*sweep_lib.digest_files([trace]), *sweep_lib.digest_code(plain)]
  outcomes = _play_all(_make_jobs(tuple(plain["policies"]), plays), where, inputs)
  sweep: dict[Any, dict[str, list[loop.Outcome]]] = {}
  for policy, found in outcomes.items():
    for one, outcome in zip(plays[1:], found[1:], strict=True):
      by_policy = sweep.setdefault(one.setting, {})
      by_policy.setdefault(policy, []).append(outcome)
  rows = _rows(name, "", {p: found[:1] for p, found in outcomes.items()})
  for setting, some in sweep.items():
    rows += _rows(plain["sweep"]["field"], setting, some)
  output.write_summary(workdir, rows)
  if config.plots:
    compare_report.write_report(
        workdir,
        plain,
        trace_name=name,
        runs={policy: found[0] for policy, found in outcomes.items()},
        sweep=sweep,
        formats=formats,
    )
  print(output.render_rows(rows, _SHOWN))
  print("\nGap to the best policy, percent of its value, by cause:")
  print(output.render_rows(rows, _GAPS))


def make_sweep(config: build.Config, trace: str | None) -> Iterator[Play]:
  """Yields the plays beside the main trace.

  There are none if the sweep is over the generation of traces but the trace is
  a file. Raises `ValueError` if the swept field does not exist, or a value does
  not fit it.
  """
  sweep = config["sweep"]
  field, values = sweep["field"], sweep["values"]
  if sweep["num_seeds"] < 1:
    raise ValueError(f"config.sweep.num_seeds must be from 1, got {sweep['num_seeds']}.")
  _find_field(config, field)
  if not unused.is_swept(config, trace):
    return
  for value in values:
    if field == "instance":
      changed = build.place(_with_field(config, field, value))
    else:  # The swept value takes precedence over a data sheet.
      changed = _with_field(build.place(config), field, value)
    for i in range(1 if trace else sweep["num_seeds"]):
      yield Play(changed, trace, config["seed"] + i, value)


def _with_field(config: build.Config, field: str, value: Any) -> build.Config:
  """Returns the config with another value of a field, such as "trace.hours"."""
  changed = copy.deepcopy(dict(config))
  parent, key, now = _find_field(changed, field)
  if now is not None and not base.fits(value, type(now)):
    raise ValueError(
        f"config.sweep.values must fit config.{field}, which is {now!r}, got " f"{value!r}."
    )
  parent[key] = value
  return changed


def _find_field(config: build.Config, field: str) -> tuple[Any, str, Any]:
  """Returns the parent of a field, its key there, and its value."""
  section, path = config, "config"
  for name in field.split("."):
    if not isinstance(section, dict) or name not in section:
      allowed = section if isinstance(section, dict) else ()
      raise ValueError("config.sweep.field: " + base.suggest(name, allowed, what=f"key of {path}:"))
    parent, section, path = section, section[name], f"{path}.{name}"
  return parent, name, section


class PlayedJob(NamedTuple):
  """The outcome of each play of a job, and the CPU time of all."""

  outcomes: list[loop.Outcome]
  cpu_secs: float


def play(job: PolicyJob) -> PlayedJob:
  """Plays a job; blocks until all its plays are done."""
  start = time.process_time()
  outcomes = []
  for one in job.plays:
    build.load_plugins(one.config)
    trace = build.make_trace(one.config, path=one.path, seed=one.seed)
    policy = forecast.choose(build.make_choices(one.config, job.policy), trace)
    price = build.make_price(one.config)
    is_main = one.setting is None
    outcomes.append(loop.simulate(trace, policy, price, keep_moments=is_main))
  return PlayedJob(outcomes, time.process_time() - start)


def _make_jobs(policies: Sequence[str], plays: Sequence[Play]) -> list[PolicyJob]:
  """Returns at least `_NUM_JOBS` jobs, if there are enough plays.

  They are the same on all machines, so that shards fit together.
  """
  num_parts = min(len(plays), math.ceil(_NUM_JOBS / len(policies)))
  size = math.ceil(len(plays) / num_parts)
  return [
      PolicyJob(policy, tuple(plays[i : i + size]))
      for policy in policies
      for i in range(0, len(plays), size)
  ]


def _play_all(
    jobs: Sequence[PolicyJob], where: sweep_lib.Where, inputs: Sequence[str]
) -> dict[str, list[loop.Outcome]]:
  results = sweep_lib.run(
      play,
      jobs,
      where,
      inputs=inputs,
      num_runs=lambda job: len(job.plays),
      describe=lambda job: {"policy": job.policy},
  )
  outcomes: dict[str, list[loop.Outcome]] = {}
  num_events = cpu_secs = 0
  for job, played in zip(jobs, results, strict=True):
    outcomes.setdefault(job.policy, []).extend(played.outcomes)
    num_events += sum(outcome.num_events for outcome in played.outcomes)
    cpu_secs += played.cpu_secs
  num_runs = sum(map(len, outcomes.values()))
  print(f"runs={num_runs} events={num_events} cpu_secs={cpu_secs:.1f}")
  return outcomes


def _rows(
    field: str, setting: Any, outcomes: Mapping[str, Sequence[loop.Outcome]]
) -> list[output.Row]:
  """Returns the lines of a setting, the policy of most value first.

  Gaps are relative to the best policies with the same price that keep all
  samples: the mean gap to the one with the highest mean, the worst gap to the
  one that is best on a trace.
  """
  mean_value = lambda policy: statistics.fmean(
      outcome.account.value for outcome in outcomes[policy]
  )
  ranked = sorted(outcomes, key=mean_value, reverse=True)
  whole = [p for p in ranked if not any(o.num_dropped for o in outcomes[p])]
  rivals = [[o.account for o in outcomes[p]] for p in whole or ranked]
  rivals = [r for r in rivals if r[0].market == rivals[0][0].market]
  return [_row(policy, field, setting, outcomes[policy], rivals) for policy in ranked]


def _row(
    policy: str,
    field: str,
    setting: Any,
    outcomes: Sequence[loop.Outcome],
    rivals: Sequence[Sequence[account_lib.Account]],
) -> output.Row:
  """Returns a line of `summary.csv`: means over the runs; best rival first."""
  accounts = [outcome.account for outcome in outcomes]
  gaps = worst = None
  if accounts[0].market == rivals[0][0].market:
    gaps = gap.mean_gap(accounts, rivals[0])
    worst = gap.worst_gap(accounts, rivals)
  rate = output.estimate([a.samples_per_sec for a in accounts])
  value = output.estimate([a.value for a in accounts])
  mean = statistics.fmean
  num_samples = max(1.0, sum(a.num_samples for a in accounts))
  num_restarts = sum(o.rungs.get("checkpoint", 0) for o in outcomes)
  shares = [a.node_time.shares() for a in accounts]
  return {
      "policy": policy,
      "field": field,
      "setting": str(setting),
      "num_runs": len(outcomes),
      "throughput_samples_per_sec": rate.mean,
      "throughput_ci95": rate.half_width,
      "cost_usd_per_hour": mean(a.usd_per_hour for a in accounts),
      "value": value.mean,
      "value_ci95": value.half_width,
      "usd_per_million_samples": 1e6 * sum(a.usd for a in accounts) / num_samples,
      "fatal_failures": mean(o.num_rollbacks for o in outcomes),
      "restarts_per_hour": num_restarts / (sum(a.secs for a in accounts) / 3600),
      "dropped_pct": 100 * mean(o.dropped_share for o in outcomes),
      **{f"{kind}_pct": 100 * mean(share[kind] for share in shares) for kind in account_lib.KINDS},
      "gap_pct": sum(gaps.values()) if gaps else None,
      **{f"gap_{c}_pct": gaps[c] if gaps else None for c in gap.CAUSES},
      "worst_gap_pct": worst,
  }
