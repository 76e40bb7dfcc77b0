"""Figures of a report, drawn with Matplotlib (imported late, as it is slow)."""

from collections.abc import Sequence
from typing import Any

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.report import content

# Okabe and Ito's colours, which most colour-blind readers can tell apart.
_KIND_COLOURS = {
    "useful": "#0072B2",
    "communication": "#56B4E9",
    "redundant": "#CC79A7",
    "bubble": "#DDDDDD",
    "recovery": "#E69F00",
    "checkpoint": "#F0E442",
    "restart": "#5F4690",
    "lost": "#D55E00",
    "idle": "#999999",
}
# The cheapest rung first.
_RUNG_COLOURS = {
    "": "#999999",
    "repair": "#56B4E9",
    "shadow": "#0072B2",
    "reroute": "#009E73",
    "drop": "#CC79A7",
    "reconfigure": "#E69F00",
    "checkpoint": "#D55E00",
    "wait": "#5F4690",
}
_LINE_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#5F4690",
    "#333333",
)
_LINE_STYLES = ("-", "--", ":")
_MARKERS = "os^vDPX*"
_SPARE_COLOUR = "#333333"
# Times of an axis are shown in the largest unit of which there are two.
_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def draw_course(run: content.Run) -> Any:
  """Returns a figure of a run over time; it must have a course."""
  course = run.course
  unit_secs, unit = time_unit(course.secs[-1] - course.secs[0])
  times = [secs / unit_secs for secs in course.secs]
  parts = 4 if course.events else 3
  fig, rows = _figure((11, 1.9 * parts), parts, sharex=True)
  rows[-1].margins(x=0.01)
  curves = (
      (course.samples_per_sec, "samples/s"),
      (course.num_nodes, "live nodes"),
  )
  for axes, (values, label) in zip(rows, curves, strict=False):
    axes.stairs(values, times, color="#0072B2", baseline=None, linewidth=0.8)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
  rows[2].plot(times, course.usd, color="#009E73")
  rows[2].set_ylabel("dollars")
  rows[2].set_ylim(bottom=0)
  if course.events:
    _draw_events(rows[3], course.events, unit_secs)
  rows[-1].set_xlabel(unit)
  fig.suptitle(_plain(run.name))
  fig.align_ylabels(rows[:3])
  return fig


def draw_value(curves: Sequence[content.Curve], *, rate_name: str) -> Any:
  """Returns a figure of value against preemption rate, all policies."""
  fig, (axes,) = _figure((9, 5), 1)
  for i, curve in enumerate(curves):
    rates = [point.rate for point in curve.points]
    colour = _LINE_COLOURS[i % len(_LINE_COLOURS)]
    axes.plot(
        rates,
        [point.value for point in curve.points],
        color=colour,
        linestyle=_LINE_STYLES[i % len(_LINE_STYLES)],
        marker=_MARKERS[i // len(_LINE_STYLES) % len(_MARKERS)],
        markersize=5,
        label=_plain(curve.policy),
    )
    axes.fill_between(
        rates,
        [point.low for point in curve.points],
        [point.high for point in curve.points],
        color=colour,
        alpha=0.2,
        linewidth=0,
    )
  axes.set_xlabel(_plain(rate_name))
  axes.set_ylabel("value (samples/s per $/h)")
  axes.set_ylim(bottom=0)
  fig.legend(loc="outside right center", frameon=False)
  return fig


def draw_node_time(runs: Sequence[content.Run]) -> Any:
  """Returns a figure with a bar for each run: where its nodes' time went."""
  fig, (axes,) = _figure((10, 1.6 + 0.42 * len(runs)), 1)
  left = [0.0] * len(runs)
  for kind in account_lib.KINDS:
    shares = [100 * run.account.node_time.shares()[kind] for run in runs]
    axes.barh(
        range(len(runs)),
        shares,
        left=left,
        color=_KIND_COLOURS[kind],
        edgecolor="white",
        linewidth=0.5,
        label=kind,
    )
    left = [a + b for a, b in zip(left, shares, strict=True)]
  axes.set_yticks(range(len(runs)), [_plain(run.name) for run in runs])
  axes.invert_yaxis()
  axes.set_xlim(0, 100)
  axes.set_xlabel("share of the nodes' time (%)")
  fig.legend(
      loc="outside lower center", ncols=len(_KIND_COLOURS), frameon=False
  )
  return fig


def time_unit(span_secs: float) -> tuple[float, str]:
  """Returns the unit that fits a span, in seconds, and its name."""
  for secs, name in _UNITS:
    if span_secs >= 2 * secs:
      return secs, name
  return _UNITS[-1]


def _draw_events(
    axes: Any, events: Sequence[content.Event], unit_secs: float
) -> None:
  """Draws a row of marks for each rung that was taken."""
  taken = {event.rung for event in events}
  rungs = [rung for rung in _RUNG_COLOURS if rung in taken]
  rungs += sorted(taken - set(rungs))
  for row, rung in enumerate(rungs):
    times = [e.secs / unit_secs for e in events if e.rung == rung]
    axes.plot(
        times,
        [row] * len(times),
        linestyle="",
        marker="|",
        markersize=12,
        color=_RUNG_COLOURS.get(rung, _SPARE_COLOUR),
    )
  axes.set_yticks(
      range(len(rungs)), [_plain(rung) or "no rung" for rung in rungs]
  )
  axes.set_ylim(len(rungs) - 0.4, -0.6)
  axes.set_ylabel("rung taken")


def _plain(text: str) -> str:
  """Returns `text` such that Matplotlib reads no formula in it."""
  return text.replace("$", r"\$")


def _figure(
    size: tuple[float, float], parts: int, *, sharex: bool = False
) -> tuple[Any, Sequence[Any]]:
  """Returns a figure and its axes, one below the other."""
  from matplotlib import figure

  fig = figure.Figure(figsize=size, layout="constrained")
  rows = fig.subplots(parts, 1, sharex=sharex, squeeze=False)[:, 0]
  for axes in rows:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
  return fig, rows
