"""GPUs for which programs are compiled, and how fast they are at most.

The facts are in `accounting/gpus.csv`.
"""

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


def find(name: str) -> machines.Machine:
  """Returns the GPU that commands call `name`, such as "h100".

  Raises `ValueError` if the table does not describe it for XLA.
  """
  if name not in (gpus := machines.gpus()):
    raise ValueError(base.suggest(name, gpus, what="GPU"))
  return machines.find_machine(name)


def describe(gpu: machines.Machine) -> str:
  """Returns the text on a GPU for XLA, a `GpuTargetConfigProto`."""
  facts = machines.gpus()[gpu.name]
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
