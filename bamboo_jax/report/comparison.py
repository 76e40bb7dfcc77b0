"""Runs side by side: how they ended."""

from collections.abc import Iterable, Sequence
import pathlib
import sys

from bamboo_jax.metrics import jsonl, summary as summary_lib

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
