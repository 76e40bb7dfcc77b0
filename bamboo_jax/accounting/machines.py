"""Hardware of an instance: its GPUs, their links, its network.

`gpus.csv` and `instances.csv` beside this module name the source of each line.
Data sheets state peaks; the column `mfu` is the usual fraction of peak FLOPs.
"""

from collections.abc import Mapping
import csv
import pathlib
from typing import Any

from bamboo_jax import base

_FOLDER = pathlib.Path(__file__).parent


def find(instance: str) -> dict[str, str]:
  """Returns an instance's entries in both tables, by column.

  Raises `ValueError` if the tables do not list it.
  """
  rows = _read("instances.csv", "instance")
  if instance not in rows:
    raise ValueError(base.suggest(instance, rows, what="instance"))
  return _read("gpus.csv", "gpu")[rows[instance]["gpu"]] | rows[instance]


def gpus() -> dict[str, dict[str, str]]:
  """Returns the facts of the GPUs that commands may name, by that name."""
  rows = _read("gpus.csv", "gpu").values()
  return {row["machine"]: row for row in rows if row["machine"]}


def apply(workload: Mapping[str, Any], instance: str) -> dict[str, Any]:
  """Returns the simulator's `workload`, with the hardware of `instance`.

  Every GPU of a node holds all parameters of its stage, so the memory limit is
  that of one GPU.
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
