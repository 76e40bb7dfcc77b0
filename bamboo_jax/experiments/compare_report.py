"""The report of a comparison of policies."""

from collections.abc import Mapping, Sequence
import numbers
import pathlib
from typing import Any

from bamboo_jax.experiments import output
from bamboo_jax.report import content, page
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
  """Writes `report.html`, and figures in the formats.

  `sweep` has, for each setting of the swept field, the runs of each policy.
  Curves are drawn if the settings are numbers.
  """
  field = config["sweep"]["field"]
  report = content.Page(
      title=f"Policies on trace {trace_name}",
      remarks=[
          *_inputs(config, trace_name),
          f"Costs are {_SOURCES[config['workload']['costs']]}. All policies "
          "see the same trace; nodes on demand are not preempted.",
          "A run over time shows the current throughput, including steps that "
          "are rolled back later; sums exclude those. Events before the first "
          "training are its start.",
      ],
      runs=[
          content.ReportRun(name=policy, account=run.account, course=make_course(run))
          for policy, run in runs.items()
      ],
      curves=_curves(sweep),
      rate_name=name_field(field),
  )
  page.write_report(workdir, report, formats=formats)


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


def make_course(outcome: loop.Outcome) -> content.Course:
  """Returns the course of a simulated run, for a figure; needs its moments.

  See `keep_moments` of `loop.simulate`.
  """
  account, moments = outcome.account, outcome.moments
  secs = [0.0, *(m.secs for m in moments), account.secs]
  num_nodes = [0, *(m.num_nodes for m in moments)]
  assert account.price is not None
  price = account.price.usd_per_hour(account.market) / 3600
  usd = [0.0]
  for i, count in enumerate(num_nodes):
    usd.append(usd[-1] + count * price * (secs[i + 1] - secs[i]))
  return content.Course(
      secs=secs,
      samples_per_sec=[0.0, *(m.samples_per_sec for m in moments)],
      num_nodes=num_nodes,
      usd=usd,
      events=[content.RunEvent(m.secs, m.text, m.rung) for m in moments if m.rung != "none"],
  )


def _curves(sweep: _Sweep) -> list[content.Curve]:
  if not all(isinstance(setting, numbers.Real) for setting in sweep):
    return []
  points: dict[str, list[content.Point]] = {}
  for setting, by_policy in sorted(sweep.items()):
    for policy, outcomes in by_policy.items():
      value = output.estimate([o.account.value for o in outcomes])
      points.setdefault(policy, []).append(value.at(setting))
  return [content.Curve(policy=p, points=found) for p, found in points.items()]
