"""Runs side by side: how they ended, and a figure of their losses."""

from collections.abc import Iterable, Sequence
import pathlib
import sys

from bamboo_jax.metrics import (
    chrome_trace,
    jsonl,
    loss_plot,
    plots,
    slot as slot_lib,
    summary as summary_lib,
)

_COMPARED = ("steps", "samples_seen", "state_sha256", "final_loss")


def find_differences(*summaries: summary_lib.Summary) -> list[str]:
  """Returns the fields in which summaries of runs differ at the end."""
  return [n for n in _COMPARED if len({getattr(summary, n) for summary in summaries}) > 1]


def show_ends(folders: Sequence[pathlib.Path], logs: Iterable[Iterable[jsonl.Line]]) -> bool:
  """Prints how runs have ended; returns whether their ends are the same.

  Raises `OSError` or `ValueError` if a folder has no summary.
  """
  ends = [summary_lib.read_summary(f / "summary.json") for f in folders]
  for folder, end, log in zip(folders, ends, logs, strict=True):
    lost = [line["victims"] for line in log if line.get("event") == "recovery"]
    print(
        f"{folder.name}: steps={end.steps} samples_seen={end.samples_seen} "
        f"stages_lost={sum(map(len, lost))} state_sha256={end.state_sha256}"
    )
  if differing := find_differences(*ends):
    print(f"different: {', '.join(differing)}", file=sys.stderr)
  return not differing


def save_figure(
    folders: Sequence[pathlib.Path], path: str | pathlib.Path, formats: Sequence[str]
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
  return plots.save_figure(loss_plot.draw_losses(runs, planned=planned), path, formats)


def _read_planned(path: pathlib.Path, lines: Sequence[jsonl.Line]) -> list[slot_lib.TrackSlot]:
  """Returns the planned slots of the nodes that are the first pipeline."""
  layouts = [line for line in lines if line.get("event") == "layout"]
  if not layouts or not path.exists():
    return []
  last = layouts[-1]
  named = last.get("names", {})
  tracks = {named.get(str(n), f"node {n}") for n in last["owners"][0]}
  return [s for s in chrome_trace.read_last(path).planned if s.track in tracks]
