"""The report of a comparison of policies."""

from collections.abc import Mapping, Sequence
import numbers
import pathlib
from typing import Any

from bamboo_jax.experiments import output
from bamboo_jax.report import contents
from bamboo_jax.sim import loop

_Sweep = Mapping[Any, Mapping[str, Sequence[loop.Outcome]]]

_GENERATED = "generated"
_SOURCES = {
    "transformer": "estimated from counts of operations, not measured",
    "profile": "from a profile of layers",
    "table": "from a table of throughput by number of nodes",
}
_NAMES = {
    "trace.hazard_per_node_hour": "preemptions per node and hour",
    "trace.hours": "length of the trace (h)",
    "trace.zone_correlation": "probability that a second zone is hit",
}
# Of other fields, by the suffix of their name.
_UNITS = {"_secs": "s", "_gib": "GiB", "_ms": "ms", "_per_sec": "1/s"}


def write_report(
    workdir: pathlib.Path,
    config: Mapping[str, Any],
    *,
    trace_name: str,
    runs: Mapping[str, loop.Outcome],
    sweep: _Sweep,
    formats: Sequence[str],
) -> None:
  """Writes the report, and figures in the formats.

  `sweep` has, for each setting of the swept field, the runs of each policy.
  """
  field = config["sweep"]["field"]
  ranked = sorted(runs.items(), key=lambda run: run[1].account.value, reverse=True)
  report = contents.make(
      f"Policies on trace {trace_name}",
      [contents.simulated(policy, run) for policy, run in ranked],
      remarks=[
          *_inputs(config, trace_name),
          f"Costs are {_SOURCES[config['workload']['costs']]}. All policies "
          "see the same trace; nodes on demand are not preempted. The best value comes first.",
          "A run over time shows the current throughput, including steps that "
          "are rolled back later; sums exclude those. Events before the first "
          "training are its start.",
      ],
      series=_series(sweep, field, [policy for policy, _ in ranked]),
  )
  contents.write(workdir, report, formats)


def name_field(field: str) -> str:
  """Returns the label of an axis for a field of the config, with its unit."""
  for ending, unit in _UNITS.items():
    if field.endswith(ending):
      return f"{field.removesuffix(ending)} ({unit})"
  return _NAMES.get(field, field)


def _inputs(config: Mapping[str, Any], trace_name: str) -> list[str]:
  workload, kind = config["workload"], config["workload"]["costs"]
  costs = workload[kind]
  costs = {kind: costs} if kind == "profile" else costs  # A path.
  job = ("num_stages", "num_microbatches", "microbatch_size")
  trace = config["trace_file"] if trace_name != _GENERATED else config["trace"]
  parts = {
      "Model": costs | {name: workload[name] for name in job},
      f"Trace {trace_name}": trace,
      "Durations": config["durations"],
  }
  return [
      f"{what}: {', '.join(f'{k}={v}' for k, v in values.items())}."
      for what, values in parts.items()
  ]


def _series(sweep: _Sweep, field: str, policies: Sequence[str]) -> dict[str, contents.Value]:
  """Returns value against the settings of the swept field, if these are numbers."""
  if not sweep or not all(isinstance(setting, numbers.Real) for setting in sweep):
    return {}
  lines: dict[str, list[Any]] = {policy: [] for policy in policies}
  counts = set()
  for setting, by_policy in sorted(sweep.items()):
    for policy, outcomes in by_policy.items():
      value = output.estimate([o.account.value for o in outcomes])
      lines[policy].append(value.at(setting))
      counts.add(len(outcomes))
  return {"value": contents.series(name_field(field), lines, note=output.explain_bars(counts))}
