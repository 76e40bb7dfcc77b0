"""PNG figure of traces: nodes over time, and how many are lost at once."""

import collections
from collections.abc import Sequence
import dataclasses
import os
from typing import Any

from bamboo_jax.metrics import plots

_LIVE, _LOST = "#0072B2", "#D55E00"


@dataclasses.dataclass(frozen=True)
class Curve:
  """Numbers of live nodes from `hours` on, and of nodes lost at each."""

  name: str
  hours: Sequence[float]
  live: Sequence[int]
  lost: Sequence[int]
  end_hours: float


def plot_traces(path: str | os.PathLike[str], curves: Sequence[Curve]) -> None:
  """Draws traces as a PNG, one below the other, to one scale."""
  from matplotlib import figure

  fig = figure.Figure(
      figsize=(12, 0.6 + 2.8 * len(curves)), layout="constrained"
  )
  rows = fig.subplots(
      len(curves),
      2,
      sharex="col",
      sharey="col",
      squeeze=False,
      width_ratios=(3, 1),
  )
  for (over_time, by_size), curve in zip(rows, curves, strict=True):
    _draw_nodes(over_time, curve)
    _draw_bulks(by_size, curve)
    for axes in (over_time, by_size):
      axes.grid(alpha=0.3)
      axes.set_axisbelow(True)
      axes.spines[["top", "right"]].set_visible(False)
  fig.legend(
      *rows[0, 0].get_legend_handles_labels(),
      loc="outside upper right",
      ncols=2,
      frameon=False,
  )
  rows[-1, 0].set_xlabel("time (h)")
  rows[-1, 1].set_xlabel("nodes preempted at an instant")
  plots.save_figure(fig, path)


def _draw_nodes(axes: Any, curve: Curve) -> None:
  axes.set_title(curve.name, loc="left", fontsize=10)
  axes.step(
      [*curve.hours, curve.end_hours],
      [*curve.live, curve.live[-1]],
      where="post",
      color=_LIVE,
      linewidth=1.2,
      label="live nodes",
  )
  axes.vlines(curve.hours, 0, curve.lost, color=_LOST, label="preempted nodes")
  axes.set_ylabel("nodes")
  axes.set_ylim(bottom=0)


def _draw_bulks(axes: Any, curve: Curve) -> None:
  from matplotlib import ticker

  bulks = collections.Counter(n for n in curve.lost if n)
  axes.bar(list(bulks), list(bulks.values()), color=_LOST)
  axes.set_ylabel("instants")
  axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
