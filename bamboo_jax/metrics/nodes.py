"""What happened to the nodes of a cluster: `nodes.jsonl`, to which lines are only appended.

The launcher notes the nodes that it starts and removes, and each victim the
fault that is about to hit it. Times are on `time.perf_counter`, which all
processes of a machine share.
"""

import json
import pathlib
import time
from typing import Any

from bamboo_jax.metrics import jsonl

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
    path = workdir / _FILE
    self._tail = jsonl.Tail(path, path.stat().st_size if path.exists() else 0)

  def read(self) -> list[dict[str, Any]]:
    return [json.loads(line) for line in self._tail.read().splitlines()]
