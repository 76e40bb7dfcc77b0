"""GPUs for which programs are compiled, and how fast they are at most.

The facts are in `accounting/gpus.csv`.
"""

import dataclasses

from bamboo_jax import base
from bamboo_jax.accounting import machines

# Of all of these GPUs; of XLA's `GpuDeviceInfoProto`. CUDA is that of the extra
# `gpu_compile`: with drivers before 12.3 no loop or branch is part of a graph.
_LIMITS = """
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  driver_version: "12.9.0" runtime_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0"
"""


@dataclasses.dataclass(frozen=True)
class Gpu:
  """A GPU.

  Attributes:
    name: Name in the table, such as "H100 80G".
    memory_bytes: Memory that programs can have.
    flops_per_sec: Peak of dense products of bfloat16.
    memory_bytes_per_sec: Peak of its memory.
    pcie_bytes_per_sec: To or from the host, each way.
    inner_bytes_per_sec: To or from the other GPUs of its machine, each way.
    description: Text for XLA, a `GpuTargetConfigProto`.
  """

  name: str
  memory_bytes: int
  flops_per_sec: float
  memory_bytes_per_sec: float
  pcie_bytes_per_sec: float
  inner_bytes_per_sec: float
  description: str

  @property
  def tf32_per_sec(self) -> float:
    """Peak of products of float32, which XLA rounds to 19 bits."""
    return self.flops_per_sec / 2


def find(name: str) -> Gpu:
  """Returns the GPU that commands call `name`.

  Raises `ValueError` if the table does not describe it.
  """
  gpus = machines.gpus()
  if name not in gpus:
    raise ValueError(base.suggest(name, gpus, what="GPU"))
  facts = gpus[name]
  number = lambda column: float(facts[column])
  return Gpu(
      name=facts["gpu"],
      memory_bytes=int(number("usable_mib")) * 2**20,
      flops_per_sec=1e12 * number("tflops"),
      memory_bytes_per_sec=1e9 * number("memory_gb_per_sec"),
      pcie_bytes_per_sec=1e9 * number("pcie_gb_per_sec"),
      inner_bytes_per_sec=1e9 * number("inner_gb_per_sec"),
      description=_describe(facts),
  )


def _describe(facts: dict[str, str]) -> str:
  major, minor = facts["capability"].split(".")
  bytes_of = lambda column, unit: int(float(facts[column]) * unit)
  per_core = bytes_of("shared_kib_per_core", 2**10)
  return f"""
gpu_device_info {{
  {_LIMITS}
  shared_memory_per_block_optin: {per_core - 2**10}
  shared_memory_per_core: {per_core}
  threads_per_core_limit: {facts["threads_per_core"]}
  core_count: {facts["cores"]} fpus_per_core: {facts["lanes_per_core"]}
  memory_bandwidth: {bytes_of("memory_gb_per_sec", 10**9)}
  l2_cache_size: {bytes_of("l2_mib", 2**20)}
  clock_rate_ghz: {facts["clock_ghz"]}
  device_memory_size: {bytes_of("usable_mib", 2**20)}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "NVIDIA {facts["gpu"]}"
"""
