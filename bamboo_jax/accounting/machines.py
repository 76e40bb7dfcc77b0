"""Hardware of an instance: its GPUs, their links, its network.

`gpus.csv` beside this module and the table of `prices` name the source of each line.
Data sheets state peaks; `efficiency.csv` has the share of a roofline that
published runs reach.
"""

import csv
import dataclasses
import pathlib
from typing import NamedTuple

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import prices as prices_lib

_FOLDER = pathlib.Path(__file__).parent


class Efficiency(NamedTuple):
  """Share of the roofline that published runs reach; `num_runs` of them."""

  least: float
  likely: float
  most: float
  num_runs: int


@dataclasses.dataclass(frozen=True)
class Machine:
  """A machine with equal GPUs.

  Attributes:
    name: Name of an instance or of a GPU, as given.
    gpu: Name of the GPU in `gpus.csv`.
    num_gpus: Number of its GPUs; 1 for the name of a GPU.
    flops_per_sec: Peak of dense products of 16-bit numbers, of one GPU.
    float32_flops_per_sec: Peak in float32, without tensor cores.
    memory_bytes: Device memory of one GPU that programs can have.
    memory_bytes_per_sec: Bandwidth of that memory.
    inner_bytes_per_sec: Between GPUs of the machine, each way.
    pcie_bytes_per_sec: Between a GPU and host memory, each way.
    network_bytes_per_sec: Between machines. None for the name of a GPU: nodes
      share one machine, and values cross host memory.
    efficiency: Share of the roofline that programs reach.
  """

  name: str
  gpu: str
  num_gpus: int
  flops_per_sec: float
  float32_flops_per_sec: float
  memory_bytes: int
  memory_bytes_per_sec: float
  inner_bytes_per_sec: float
  pcie_bytes_per_sec: float
  network_bytes_per_sec: float | None
  efficiency: Efficiency

  @property
  def is_instance(self) -> bool:
    """Whether it is an instance that can be rented, not the name of a GPU."""
    return self.network_bytes_per_sec is not None

  @property
  def link_bytes_per_sec(self) -> float:
    """Rate at which a node sends to another, by way of host memory."""
    network = self.network_bytes_per_sec
    return min(self.pcie_bytes_per_sec, network or self.pcie_bytes_per_sec)


def find_machine(name: str) -> Machine:
  """Returns the machine of an instance, or one GPU, such as "h100".

  Raises `ValueError` with the most similar name if no table lists it.
  """
  gpus, listed = _read("gpus.csv", "gpu"), prices_lib.load_prices(prices_lib.DEFAULT_PATH)
  instances = {line.instance: line for line in listed if line.network_gbit_per_sec}
  short = {gpu["machine"]: gpu for gpu in gpus.values() if gpu["machine"]}
  by_name = short | gpus
  if name not in by_name | instances:
    raise ValueError(base.suggest(name, [*short, *instances], what="machine"))
  instance = instances.get(name)
  facts = gpus[instance.gpu] if instance else by_name[name]
  of = lambda column: 1e9 * float(facts[column])
  network = instance and instance.network_gbit_per_sec
  memory_mib = facts["usable_mib"] or 1024 * float(facts["memory_gib"])
  shares = _read("efficiency.csv", "capability")
  share = shares.get(facts["capability"]) or shares["any"]
  least, likely, most = (float(share[n]) for n in ("least", "likely", "most"))
  return Machine(
      name=name,
      gpu=facts["gpu"],
      num_gpus=instance.gpu_count if instance else 1,
      flops_per_sec=1e3 * of("tflops"),
      float32_flops_per_sec=1e3 * of("float32_tflops"),
      memory_bytes=int(float(memory_mib) * 2**20),
      memory_bytes_per_sec=of("memory_gb_per_sec"),
      inner_bytes_per_sec=of("inner_gb_per_sec"),
      pcie_bytes_per_sec=of("pcie_gb_per_sec"),
      network_bytes_per_sec=1e9 * network / 8 if network else None,
      efficiency=Efficiency(least, likely, most, num_runs=int(share["runs"])),
  )


def find_memory_limit(config: config_lib.Config) -> int | None:
  """Returns the memory of a node in bytes, of all its devices; None: no limit."""
  limit, mesh = config.plan.memory_limit_gib, config.node.mesh
  if config.plan.machine is not None:
    limit = find_machine(config.plan.machine).memory_bytes / 2**30
  return None if limit is None else int(limit * 2**30) * mesh.data * mesh.tensor


def gpus() -> dict[str, dict[str, str]]:
  """Returns the facts of the GPUs that commands may name, by that name."""
  rows = _read("gpus.csv", "gpu").values()
  return {row["machine"]: row for row in rows if row["machine"]}


def find_peak_tflops(device_kind: str, *, dtype: str) -> float | None:
  """Returns the peak of a device for dense products, or None if not known.

  `device_kind` is JAX's, such as "NVIDIA H100 80GB HBM3"; of dtypes only
  "bfloat16" is known.
  """
  facts = find_kind(device_kind)
  return float(facts["tflops"]) if facts and dtype == "bfloat16" else None


def find_kind(device_kind: str) -> dict[str, str] | None:
  """Returns the facts of the GPU of a JAX `device_kind`; None if not listed."""
  words = set(device_kind.replace("-", " ").split())
  named = {row["kind"]: row for row in _read("gpus.csv", "gpu").values()}
  fits = [k for k in named if k and words.issuperset(k.split())]
  return named[max(fits, key=len)] if fits else None


def _read(name: str, key: str) -> dict[str, dict[str, str]]:
  text = (_FOLDER / name).read_text(encoding="utf-8")
  lines = (line for line in text.splitlines() if line[:1] != "#")
  return {row[key]: row for row in csv.DictReader(lines)}
