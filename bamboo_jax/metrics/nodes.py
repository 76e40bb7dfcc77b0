"""What happened to the nodes of a cluster: `nodes.jsonl`, to which lines are only appended.

The launcher notes the nodes that it starts and removes, and each victim the
fault that is about to hit it. Times are on `time.perf_counter`, which all
processes of a machine share.
"""

import json
import pathlib
import time
from typing import Any

FAULT = "fault"
_FILE = "nodes.jsonl"


def note(workdir: pathlib.Path, event: str, name: str, **facts: Any) -> None:
  """Appends an event of the node `name`, with the time; raises `OSError`."""
  line = {"at_secs": time.perf_counter(), "event": event, "name": name, **facts}
  with open(workdir / _FILE, "a") as file:
    file.write(json.dumps(line) + "\n")


class Reader:
  """Reads the lines that are appended from now on, each once."""

  def __init__(self, workdir: pathlib.Path) -> None:
    self._path = workdir / _FILE
    self._at = self._path.stat().st_size if self._path.exists() else 0

  def read(self) -> list[dict[str, Any]]:
    if not self._path.exists():
      return []
    with open(self._path, "rb") as file:
      file.seek(self._at)
      whole, end, _ = file.read().rpartition(b"\n")
    self._at += len(whole + end)
    return [json.loads(line) for line in whole.splitlines()]
