"""A figure of the loss of one or more runs, with deaths and joins marked."""

from collections.abc import Sequence
import dataclasses
from typing import Any

from bamboo_jax.metrics import jsonl, palette, plots, schedule_plot, slot as slot_lib

_TRACK = 0.3  # Inches for a node in the planned step.

Points = tuple[Sequence[int], Sequence[float]]

# By event: the row's label, marker and colour.
_MARKS = {"recovery": ("deaths", "x", palette.RED), "join": ("joins", "+", palette.GREEN)}
# The first run is drawn below the others, which may have equal losses.
_LINES = (
    dict(color=palette.SKY, linewidth=4.0, alpha=0.6),
    dict(color=palette.BLUE, linewidth=1.2),
    dict(color=palette.RED, linewidth=1.2, linestyle="--"),
    dict(color=palette.GREEN, linewidth=1.2, linestyle=":"),
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
  marks: dict[str, list[int]] = {event: [] for event in _MARKS}
  for line in lines:
    if line.get("event") in marks:
      nodes = line["nodes" if line["event"] == "recovery" else "boot_secs"]
      marks[line["event"]] += [line["step"]] * len(nodes)
  return Losses(
      name=name,
      train=jsonl.column(lines, "loss"),
      evaluation=jsonl.column(lines, "loss", event="eval"),
      marks={event: steps for event, steps in marks.items() if steps},
  )


def draw_losses(runs: Sequence[Losses], *, planned: Sequence[slot_lib.TrackSlot] = ()) -> Any:
  """Returns a figure: losses, and below them a row of marks for each event.

  Above them stands a step as it was `planned`, if given.
  """
  rows = [(run, event) for run in runs for event in _MARKS if event in run.marks]
  has_names = len(runs) > 1
  num_tracks = len(slot_lib.tracks(planned))
  inches = [_TRACK * num_tracks] * bool(planned)
  inches += [3.0 if planned else 4.2]
  inches += [0.25 * len(rows) + 0.15] * bool(rows)
  fig, grid = plots.new_figure(
      (8, sum(inches) + 0.4 + 1.2 * bool(planned)), len(inches), height_ratios=inches
  )
  axes, last = grid[int(bool(planned)), 0], grid[-1, 0]
  _draw_curves(axes, runs, has_names=has_names)
  axes.set_ylabel("loss (nats per token)")
  if rows:
    last.sharex(axes)
    axes.tick_params(labelbottom=False)
    for run, event in rows:
      for step in sorted({*run.marks[event]}):
        style = dict(color=_MARKS[event][2], linewidth=0.8, alpha=0.35)
        axes.axvline(step, zorder=0.5, **style)
    _draw_marks(last, rows, has_names=has_names)
  last.set_xlabel("step")
  last.xaxis.set_major_locator(plots.count_locator())
  curves = axes.get_legend_handles_labels()[0]
  if planned:
    schedule_plot.draw_planned(grid[0, 0], planned)
    axes.legend(handles=curves, loc="upper right", frameon=False)
  else:
    plots.add_legend(fig, curves, side="upper")
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


def _draw_marks(axes: Any, rows: Sequence[tuple[Losses, str]], *, has_names: bool) -> None:
  labels = []
  for row, (run, event) in enumerate(rows):
    label, marker, colour = _MARKS[event]
    steps = run.marks[event]
    style = dict(linestyle="", marker=marker, color=colour, markersize=7)
    axes.plot(steps, [row] * len(steps), markeredgewidth=1.5, **style)
    name = f"{plots.plain(run.name)}: " * has_names
    labels.append(f"{name}{len(steps)} {label if len(steps) > 1 else label[:-1]}")
  axes.set_yticks(range(len(labels)), labels)
  axes.set_ylim(len(labels) - 0.4, -0.6)
  axes.tick_params(axis="y", length=0)
