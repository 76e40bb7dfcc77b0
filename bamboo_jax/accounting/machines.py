"""What an instance can do: its GPUs, their links, its network.

`gpus.csv` and `instances.csv` beside this module say where each line is from;
facts of data sheets are peaks, of which a usual share is reached.
"""

from collections.abc import Mapping
import csv
import pathlib
from typing import Any

from bamboo_jax import base

_FOLDER = pathlib.Path(__file__).parent


def find(instance: str) -> dict[str, str]:
  """Returns what both tables say of an instance, by column."""
  rows = _read("instances.csv", "instance")
  if instance not in rows:
    raise ValueError(base.suggest(instance, rows, what="instance"))
  return _read("gpus.csv", "gpu")[rows[instance]["gpu"]] | rows[instance]


def apply(workload: Mapping[str, Any], instance: str) -> dict[str, Any]:
  """Returns a workload of the simulator's config, on nodes of `instance`.

  Each GPU has all parameters of a stage, so a node has the memory of one.
  """
  facts = find(instance)
  of = lambda column: float(facts[column])
  model = dict(workload["transformer"]) | {
      "flops_per_sec": 1e12 * of("tflops") * of("mfu"),
      "link_bytes_per_sec": 1e9 * of("network_gbit_per_sec") / 8,
      "bytes_per_sec": 1e9 * of("memory_gb_per_sec"),
  }
  return dict(workload) | {
      "transformer": model,
      "gpus_per_node": int(facts["gpu_count"]),
      "inner_bytes_per_sec": 1e9 * of("inner_gb_per_sec"),
      "memory_limit_gib": of("memory_gib"),
  }


def _read(name: str, key: str) -> dict[str, dict[str, str]]:
  text = (_FOLDER / name).read_text(encoding="utf-8")
  lines = (line for line in text.splitlines() if line[:1] != "#")
  return {row[key]: row for row in csv.DictReader(lines)}
