"""What a run leaves in its folder, made up."""

import json

from tests import folders

SUMMARY = dict(
    steps=3,
    final_loss=2.5,
    params_sha256="p",
    state_sha256="a",
    samples_seen=12,
    resumed_from_step=0,
    median_step_secs=0.1,
    bubble_fraction=0.3,
)


def write(folder, lines, **files):
  """Writes the lines of a log, and `files` of JSON by their names; returns the folder."""
  folder.mkdir(parents=True, exist_ok=True)
  folders.write_lines(folder / "metrics.jsonl", lines)
  for name, content in files.items():
    (folder / f"{name}.json").write_text(json.dumps(content))
  return folder
