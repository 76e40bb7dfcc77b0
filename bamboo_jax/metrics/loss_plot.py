"""A figure of the loss of one or more runs, with deaths and joins marked."""

from collections.abc import Sequence
import dataclasses
import os
from typing import Any

from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import plots

Points = tuple[Sequence[int], Sequence[float]]

# By event: the row's label, marker and colour.
_MARKS = {
    "recovery": ("deaths", "x", plots.RED),
    "join": ("joins", "+", plots.GREEN),
}
# The first run is drawn below the others, which may have equal losses.
_LINES = (
    dict(color=plots.SKY, linewidth=4.0, alpha=0.6),
    dict(color=plots.BLUE, linewidth=1.2),
    dict(color=plots.RED, linewidth=1.2, linestyle="--"),
    dict(color=plots.GREEN, linewidth=1.2, linestyle=":"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses:
  """The losses of a run.

  Attributes:
    train: Steps, from 1, and mean loss per token in nats.
    evaluation: The same of the evaluations; may be empty.
    marks: Steps in which nodes died or joined, by event ("recovery", "join");
      once per node.
  """

  name: str
  train: Points
  evaluation: Points = ((), ())
  marks: dict[str, list[int]] = dataclasses.field(default_factory=dict)


def read_losses(lines: Sequence[jsonl.Line], *, name: str) -> Losses:
  """Returns the losses in the log of a run, see `jsonl.read_lines`."""
  marks = {event: [] for event in _MARKS}
  for line in lines:
    if line.get("event") in marks:
      nodes = line["nodes" if line["event"] == "recovery" else "boot_secs"]
      marks[line["event"]] += [_step_of(line)] * len(nodes)
  return Losses(
      name=name,
      train=jsonl.column(lines, "loss"),
      evaluation=jsonl.column(lines, "loss", event="eval"),
      marks={event: steps for event, steps in marks.items() if steps},
  )


def _step_of(event: jsonl.Line) -> int:
  """Returns the step, from 1, in which a node died or joined.

  The events store the number of finished steps.
  """
  return event["step"] + 1


def plot_losses(
    path: str | os.PathLike[str],
    runs: Sequence[Losses],
    *,
    formats: Sequence[str] = ("png",),
) -> None:
  """Draws the losses of several runs in one figure; see `plots.save_figure`."""
  plots.save_figure(draw_losses(runs), path, formats)


def draw_losses(runs: Sequence[Losses]) -> Any:
  """Returns a figure: losses, and below them a row of marks for each event."""
  rows = [
      (run, event) for run in runs for event in _MARKS if event in run.marks
  ]
  has_names = len(runs) > 1
  shares = (12, len(rows) + 0.6) if rows else (1,)
  fig, grid = plots.new_figure(
      (8, 4.5 + 0.25 * len(rows)),
      len(shares),
      sharex=True,
      height_ratios=shares,
  )
  axes = grid[0, 0]
  _draw_curves(axes, runs, has_names=has_names)
  axes.set_ylabel("loss (nats per token)")
  if rows:
    for run, event in rows:
      for step in sorted({*run.marks[event]}):
        style = dict(color=_MARKS[event][2], linewidth=0.8, alpha=0.35)
        axes.axvline(step, zorder=0.5, **style)
    _draw_marks(grid[1, 0], rows, has_names=has_names)
  grid[-1, 0].set_xlabel("step")
  grid[-1, 0].xaxis.set_major_locator(plots.count_locator())
  plots.add_legend(fig, axes.get_legend_handles_labels()[0], side="upper")
  return fig


def _draw_curves(axes: Any, runs: Sequence[Losses], *, has_names: bool) -> None:
  lines = _LINES if has_names else _LINES[1:]
  for i, run in enumerate(runs):
    style = lines[i % len(lines)]
    name = f"{plots.plain(run.name)}: " * has_names
    axes.plot(*run.train, label=f"{name}train", **style)
    if run.evaluation[0]:
      axes.plot(
          *run.evaluation,
          label=f"{name}evaluation",
          color=style["color"],
          linestyle="",
          marker="os^v"[i % 4],
          markersize=9 - 4 * (i > 0) if has_names else 5,
          markeredgecolor="#333333",
          markeredgewidth=0.6,
      )


def _draw_marks(
    axes: Any, rows: Sequence[tuple[Losses, str]], *, has_names: bool
) -> None:
  labels = []
  for row, (run, event) in enumerate(rows):
    label, marker, colour = _MARKS[event]
    steps = run.marks[event]
    style = dict(linestyle="", marker=marker, color=colour, markersize=7)
    axes.plot(steps, [row] * len(steps), markeredgewidth=1.5, **style)
    name = f"{plots.plain(run.name)}: " * has_names
    labels.append(
        f"{name}{len(steps)} {label if len(steps) > 1 else label[:-1]}"
    )
  axes.set_yticks(range(len(labels)), labels)
  axes.set_ylim(len(labels) - 0.4, -0.6)
  axes.tick_params(axis="y", length=0)
