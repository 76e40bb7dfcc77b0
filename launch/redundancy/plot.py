"""A figure of the modes: what they cost without, and with a death."""

from collections.abc import Sequence
import dataclasses
import io
import pathlib

from bamboo_jax import base

# Okabe and Ito's colours, which most colour-blind readers can tell apart.
_COLOURS = ("#000000", "#0072B2", "#009E73", "#D55E00", "#CC79A7")


@dataclasses.dataclass(frozen=True)
class Point:
  """One mode.

  Attributes:
    mode: The mode.
    overhead: Time of a step without a death over that of mode "lazy", less 1.
    predicted_overhead: What it should be.
    pause_ms: How much longer a step with a death takes.
    predicted_pause_ms: How much longer it should take.
  """

  mode: str
  overhead: float
  predicted_overhead: float
  pause_ms: float
  predicted_pause_ms: float


def plot_modes(path: pathlib.Path, points: Sequence[Point]) -> None:
  """Draws overhead against pause as a PNG, all or nothing."""
  from matplotlib import figure
  from matplotlib.backends import backend_agg

  fig = figure.Figure(figsize=(7, 4.5), layout="constrained")
  axes = fig.add_subplot(
      title="Redundancy: its cost without and with a death",
      xlabel="step without a death, longer than with lazy (%)",
      ylabel="step with a death, longer than without (ms)",
  )
  for point, colour in zip(points, _COLOURS, strict=False):
    x = [100 * point.overhead, 100 * point.predicted_overhead]
    y = [point.pause_ms, point.predicted_pause_ms]
    axes.plot(x, y, color=colour, linewidth=0.8, linestyle=":")
    axes.plot(x[:1], y[:1], "o", color=colour, label=point.mode)
    axes.plot(x[1:], y[1:], "o", color=colour, fillstyle="none")
  axes.plot([], [], "o", color="#999999", label="measured")
  axes.plot([], [], "o", color="#999999", fillstyle="none", label="predicted")
  axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
  axes.grid(alpha=0.3)
  axes.spines[["top", "right"]].set_visible(False)
  axes.legend(frameon=False)
  data = io.BytesIO()
  backend_agg.FigureCanvasAgg(fig).print_png(data)
  base.write_atomically(path, data.getvalue())
