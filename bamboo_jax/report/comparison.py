"""Two runs side by side: how they ended, and a figure of their losses."""

from collections.abc import Iterable, Sequence
import pathlib

from bamboo_jax.metrics import chrome_trace
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import loss_plot
from bamboo_jax.metrics import plots
from bamboo_jax.metrics import slot as slot_lib
from bamboo_jax.metrics import summary as summary_lib

_COMPARED = ("steps", "samples_seen", "state_sha256", "final_loss")


def render_end(
    name: str, summary: summary_lib.Summary, lines: Iterable[jsonl.Line]
) -> str:
  """Returns the line about how a run with this log has ended."""
  recoveries = [line for line in lines if line.get("event") == "recovery"]
  return (
      f"{name}: steps={summary.steps} samples_seen={summary.samples_seen} "
      f"stages_lost={sum(len(line['victims']) for line in recoveries)} "
      f"state_sha256={summary.state_sha256}"
  )


def find_differences(
    first: summary_lib.Summary, second: summary_lib.Summary
) -> list[str]:
  """Returns the fields in which two summaries of runs differ at the end."""
  return [
      name
      for name in _COMPARED
      if getattr(first, name) != getattr(second, name)
  ]


def save_figure(
    folders: Sequence[pathlib.Path],
    path: str | pathlib.Path,
    formats: Sequence[str],
) -> list[pathlib.Path]:
  """Draws the losses of runs over each other; returns the files.

  Above them is the last step of the first pipeline of the first run, as it was
  planned, if that run has a trace. Raises `OSError`, `ValueError` for files
  that are not those of a run, and `base.MissingExtraError`.
  """
  logs = [jsonl.read_lines(folder / "metrics.jsonl") for folder in folders]
  runs = [
      loss_plot.read_losses(log, name=folder.name)
      for folder, log in zip(folders, logs, strict=True)
  ]
  planned = _read_planned(folders[0] / "trace.json", logs[0])
  return plots.save_figure(
      loss_plot.draw_losses(runs, planned=planned), path, formats
  )


def _read_planned(
    path: pathlib.Path, lines: Sequence[jsonl.Line]
) -> list[slot_lib.TrackSlot]:
  """Returns the planned slots of the nodes that are the first pipeline."""
  layouts = [line for line in lines if line.get("event") == "layout"]
  if not layouts or not path.exists():
    return []
  tracks = {f"node {node}" for node in layouts[-1]["owners"][0]}
  return [s for s in chrome_trace.read_last(path).planned if s.track in tracks]
