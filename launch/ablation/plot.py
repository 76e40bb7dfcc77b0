"""A figure of an ablation: every run a dot, every setting its mean."""

from collections.abc import Mapping, Sequence
import io
import pathlib
import statistics

from bamboo_jax import base

_COLOUR = "#0072B2"
_COLUMNS = 3


def plot_groups(
    path: pathlib.Path,
    *,
    labels: Sequence[str],
    panels: Mapping[str, Sequence[Sequence[float]]],
) -> None:
  """Draws a panel for each metric as a PNG, all or nothing.

  Args:
    path: Where the PNG goes.
    labels: Names of the groups.
    panels: For each metric, the values of each group.
  """
  from matplotlib import figure
  from matplotlib.backends import backend_agg

  num_rows = -(-len(panels) // _COLUMNS)
  size = (2 + 3 * _COLUMNS, num_rows * (1.2 + 0.4 * len(labels)))
  fig = figure.Figure(figsize=size, layout="constrained")
  grid = fig.subplots(num_rows, _COLUMNS, sharey=True, squeeze=False)
  for axes in grid.flat[len(panels) :]:
    axes.set_axis_off()
  for axes, (name, groups) in zip(grid.flat, panels.items(), strict=False):
    for y, values in enumerate(groups):
      if values:
        axes.plot(values, [y] * len(values), "o", color=_COLOUR, alpha=0.4)
        axes.plot(statistics.fmean(values), y, "|", color=_COLOUR, ms=18)
    axes.set_xlabel(name)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
  data = io.BytesIO()
  backend_agg.FigureCanvasAgg(fig).print_png(data)
  base.write_atomically(path, data.getvalue())
