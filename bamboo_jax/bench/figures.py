"""Figures of comparisons, as PNGs."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import statistics

from bamboo_jax.metrics import plots

# Okabe and Ito's colours, which most colour-blind readers can tell apart.
_COLOURS = ("#000000", "#0072B2", "#009E73", "#D55E00", "#CC79A7")
_NUM_COLUMNS = 3  # Of panels.


@dataclasses.dataclass(frozen=True)
class Mode:
  """A mode: overhead of a step to mode "lazy", and pause of a death."""

  name: str
  overhead: float
  predicted_overhead: float
  pause_ms: float
  predicted_pause_ms: float


def plot_modes(path: pathlib.Path, modes: Sequence[Mode]) -> None:
  """Draws overhead against pause, measured and predicted."""
  from matplotlib import figure

  fig = figure.Figure(figsize=(7, 4.5), layout="constrained")
  axes = fig.add_subplot(
      title="Redundancy: its cost without and with a death",
      xlabel="step without a death, longer than with lazy (%)",
      ylabel="step with a death, longer than without (ms)",
  )
  for mode, colour in zip(modes, _COLOURS, strict=False):
    x = [100 * mode.overhead, 100 * mode.predicted_overhead]
    y = [mode.pause_ms, mode.predicted_pause_ms]
    axes.plot(x, y, color=colour, linewidth=0.8, linestyle=":")
    axes.plot(x[:1], y[:1], "o", color=colour, label=mode.name)
    axes.plot(x[1:], y[1:], "o", color=colour, fillstyle="none")
  axes.plot([], [], "o", color="#999999", label="measured")
  axes.plot([], [], "o", color="#999999", fillstyle="none", label="predicted")
  axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
  axes.grid(alpha=0.3)
  axes.spines[["top", "right"]].set_visible(False)
  axes.legend(frameon=False)
  plots.save_figure(fig, path)


def plot_groups(
    path: pathlib.Path,
    *,
    labels: Sequence[str],
    panels: Mapping[str, Sequence[Sequence[float]]],
) -> None:
  """Draws a panel for each metric: every run a dot, every group its mean."""
  from matplotlib import figure

  num_rows = -(-len(panels) // _NUM_COLUMNS)
  size = (2 + 3 * _NUM_COLUMNS, num_rows * (1.2 + 0.4 * len(labels)))
  fig = figure.Figure(figsize=size, layout="constrained")
  grid = fig.subplots(num_rows, _NUM_COLUMNS, sharey=True, squeeze=False)
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
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
  plots.save_figure(fig, path)
