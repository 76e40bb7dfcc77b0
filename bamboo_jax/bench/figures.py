"""Figures of comparisons, as PNGs."""

from collections.abc import Mapping, Sequence
import pathlib
import statistics

from bamboo_jax.metrics import plots

# Okabe and Ito's colours, which most colour-blind readers can tell apart.
_COLOURS = ("#000000", "#0072B2", "#009E73", "#D55E00", "#CC79A7")
_NUM_COLUMNS = 3  # Of panels.

Point = tuple[float, float]


def plot_modes(
    path: pathlib.Path, modes: Mapping[str, tuple[Point, Point]]
) -> None:
  """Draws two points for each mode, measured and predicted.

  A point is the overhead of a step to mode "lazy", as a fraction, and the pause
  of a death in ms.
  """
  fig, [[axes]] = plots.new_figure((7, 4.5))
  axes.set(
      title="Redundancy: its cost without and with a death",
      xlabel="step without a death, longer than with lazy (%)",
      ylabel="step with a death, longer than without (ms)",
  )
  for (name, points), colour in zip(modes.items(), _COLOURS, strict=False):
    x, y = [100 * x for x, _ in points], [y for _, y in points]
    axes.plot(x, y, color=colour, linewidth=0.8, linestyle=":")
    axes.plot(x[:1], y[:1], "o", color=colour, label=name)
    axes.plot(x[1:], y[1:], "o", color=colour, fillstyle="none")
  axes.plot([], [], "o", color="#999999", label="measured")
  axes.plot([], [], "o", color="#999999", fillstyle="none", label="predicted")
  axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
  axes.legend(frameon=False)
  plots.save_figure(fig, path)


def plot_groups(
    path: pathlib.Path,
    *,
    labels: Sequence[str],
    panels: Mapping[str, Sequence[Sequence[float]]],
) -> None:
  """Draws a panel for each metric: every run a dot, every group its mean."""
  num_rows = -(-len(panels) // _NUM_COLUMNS)
  size = (2 + 3 * _NUM_COLUMNS, num_rows * (1.2 + 0.4 * len(labels)))
  fig, grid = plots.new_figure(size, num_rows, _NUM_COLUMNS, sharey=True)
  for axes in grid.flat[len(panels) :]:
    axes.set_axis_off()
  for axes, (name, groups) in zip(grid.flat, panels.items(), strict=False):
    for y, values in enumerate(groups):
      if values:
        axes.plot(values, [y] * len(values), "o", color=_COLOURS[1], alpha=0.4)
        axes.plot(statistics.fmean(values), y, "|", color=_COLOURS[1], ms=18)
    axes.set_xlabel(name)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
  plots.save_figure(fig, path)
