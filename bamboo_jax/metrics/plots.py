"""Figures: one style, legends that fit, and files as PNG, PDF or SVG.

Matplotlib, of the extra `plots`, is imported only for drawing, because the
import takes longer than many commands.
"""

from collections.abc import Sequence
import io
import os
import pathlib
import types
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import extras

FORMATS = ("png", "pdf", "svg")

_DPI = 150
_EDGE = 0.98  # Of the width of a figure, most for a legend.
# Text of a PDF stays text, and files of the same figure are alike.
_STYLE: dict[Any, Any] = {"pdf.fonttype": 42, "svg.hashsalt": "bamboo_jax"}
_NO_DATE = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def check() -> None:
  """Raises `base.MissingExtraError` if Matplotlib is not installed."""
  load("figure")


def load(name: str) -> types.ModuleType:
  """Returns a module of matplotlib; raises like `check`."""
  return extras.load(f"matplotlib.{name}", extra="plots", what="Figures")


def parse_formats(text: str) -> tuple[str, ...]:
  """Returns the formats in a list such as "png,pdf".

  Raises `ValueError` if it is empty, or has a duplicate or an entry that is not
  in `FORMATS`.
  """
  names = tuple(name.strip() for name in text.split(","))
  unknown = [name for name in names if name not in FORMATS]
  if unknown or len(set(names)) < len(names):
    raise ValueError(
        "Formats of figures are a list of "
        f"{', '.join(FORMATS)}, each once, such as png,pdf; got {text!r}."
    )
  return names


def new_figure(
    size: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Any, Any]:
  """Returns a Matplotlib figure and the array of its axes, all with a grid.

  The size is in inches; `options` are those of `Figure.subplots`.
  """
  shape = dict(figsize=size, layout="constrained", dpi=_DPI)
  fig = load("figure").Figure(**shape)
  load("backends.backend_agg").FigureCanvasAgg(fig)  # Measures text.
  grid = fig.subplots(rows, columns, squeeze=False, **options)
  for axes in grid.flat:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
  return fig, grid


def add_legend(fig: Any, handles: Sequence[Any], *, side: str = "lower") -> None:
  """Adds a legend below or above ("upper") the axes, as wide as fits.

  It has as few rows as possible, of nearly equal length.
  """
  renderer = fig.canvas.get_renderer()
  for num_rows in range(1, len(handles) + 1):
    legend = fig.legend(
        handles=handles,
        loc=f"outside {side} center",
        ncols=-(-len(handles) // num_rows),
        frameon=False,
    )
    width = legend.get_window_extent(renderer).width
    if width <= _EDGE * fig.bbox.width or num_rows == len(handles):
      return
    legend.remove()


def count_locator() -> Any:
  """Returns ticks for an axis of whole numbers."""
  return load("ticker").MaxNLocator(integer=True, min_n_ticks=1)


def plain(text: str) -> str:
  """Escapes `text` so that Matplotlib reads no formula in it."""
  return text.replace("$", r"\$")


def save_figure(
    fig: Any, path: str | os.PathLike[str], formats: Sequence[str] = ("png",)
) -> list[pathlib.Path]:
  """Writes a Matplotlib figure, each file atomically; returns their paths.

  The suffix of `path` is replaced by that of each format. Raises `OSError`.
  """
  import matplotlib  # Imported by `load` already.

  paths = [pathlib.Path(path).with_suffix(f".{name}") for name in formats]
  for file, name in zip(paths, formats, strict=True):
    data = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
      fig.savefig(data, format=name, metadata=_NO_DATE[name])
    base.write_atomically(file, data.getvalue())
  return paths
