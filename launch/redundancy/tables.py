"""The report of the benchmark of redundancy as text."""

from collections.abc import Sequence

from bamboo_jax.metrics import table
from launch import ratios
from launch.redundancy import measure
from launch.redundancy import report as report_lib

_MIB = 2**20


def render_report(report: report_lib.Report) -> str:
  """Returns all tables, one after the other."""
  num_rounds = report.modes[0].to_none.num_pairs
  options = " ".join(f"{k}={v}" for k, v in report.options.items())
  parts = [
      f"partition={report.partition} pairs={num_rounds} {options}",
      _steps(report),
      _bytes(report),
      _ratios(report),
      "Deaths, one row per stage and time of death:",
      _deaths(report.deaths),
      _pauses(report),
      "Predicted for longer pipelines, with the same work per stage:",
      _sizes(report),
      f"one_state_in_all_modes_and_replicas={report.same_state}",
  ]
  return "\n\n".join(parts)


def _steps(report: report_lib.Report) -> str:
  rows = [
      (
          "mode step_ms predicted compute refresh vote apply cpu RF coverage"
      ).split()
  ]
  for m in report.modes:
    s = m.step
    times = (s.step_ms, m.predicted_ms, s.compute_ms, s.refresh_ms)
    rows.append(
        [
            m.mode,
            *(f"{ms:.1f}" for ms in times),
            f"{s.vote_ms:.2f}",
            f"{s.apply_ms:.1f}",
            f"{s.cpu_ms:.1f}",
            str(m.num_redundant),
            _percent(m.coverage),
        ]
    )
  return table.align(rows)


def _bytes(report: report_lib.Report) -> str:
  rows = ["mode replica_MiB refresh_MiB/step host_MiB vote_share".split()]
  for m in report.modes:
    sizes = (m.replica_bytes, m.step.refresh_bytes, m.step.host_bytes)
    rows.append(
        [
            m.mode,
            *(f"{size / _MIB:.1f}" for size in sizes),
            f"{100 * m.vote_share:.2f} %",
        ]
    )
  return table.align(rows)


def _ratios(report: report_lib.Report) -> str:
  """Returns ratios of step times, and how many points off a prediction is."""
  by_mode = {m.mode: m for m in report.modes}
  lazy, none = by_mode["lazy"], by_mode["none"]
  rows = [
      "mode to_none [95_%] predicted to_lazy [95_%] predicted off rows".split()
  ]
  for m in report.modes:
    predicted = m.predicted_ms / lazy.predicted_ms
    rows.append(
        [
            m.mode,
            *_ratio(m.to_none),
            f"{m.predicted_ms / none.predicted_ms:.3f}",
            *_ratio(m.to_lazy),
            f"{predicted:.3f}",
            f"{100 * (m.to_lazy.median - predicted):+.1f}",
            f"{1.0 + m.overhead:.3f}",
        ]
    )
  return (
      table.align(rows)
      + f"\nreplica upkeep, lazy to none: {' '.join(_ratio(lazy.to_none))}, "
      + f"{lazy.step.refresh_bytes / _MIB:.1f} MiB per step, sent in "
      + f"{report.refresh_link_ms:.1f} ms with nothing else to do"
  )


def _deaths(deaths: Sequence[measure.DeathTime]) -> str:
  rows = [
      (
          "mode stage at before died_ms planned longer_ms predicted plan_ms"
          " passes"
      ).split()
  ]
  for d in deaths:
    times = (d.died_ms, d.planned_died_ms, d.longer_ms, d.predicted_longer_ms)
    rows.append(
        [
            d.mode,
            f"{d.victim}",
            f"{d.at}",
            d.before,
            *(f"{ms:.1f}" for ms in times),
            f"{d.plan_ms:.1f}",
            f"{d.num_passes:.0f}",
        ]
    )
  return table.align(rows)


def _pauses(report: report_lib.Report) -> str:
  rows = ["mode pause_ms predicted to_lazy [95_%] predicted".split()]
  for p in report.pauses:
    rows.append(
        [
            p.mode,
            f"{p.measured_ms:.1f}",
            f"{p.predicted_ms:.1f}",
            *_ratio(p.to_lazy),
            f"{p.predicted_to_lazy:.3f}",
        ]
    )
  return table.align(rows)


def _sizes(report: report_lib.Report) -> str:
  rows = ["stages microbatches mode rows_ms overhead coverage pause".split()]
  for s in report.sizes:
    rows.append(
        [
            f"{s.num_stages}",
            f"{s.num_microbatches}",
            s.mode,
            f"{s.compute_ms:.1f}",
            _percent(s.overhead),
            _percent(s.coverage),
            "-" if s.pause is None else _percent(s.pause),
        ]
    )
  return table.align(rows)


def _ratio(ratio: ratios.Ratio) -> list[str]:
  return [f"{ratio.median:.3f}", f"[{ratio.low:.3f}, {ratio.high:.3f}]"]


def _percent(share: float) -> str:
  return f"{100 * share:.1f} %"
