"""Devices of a GPU that is not there, and the private API of JAX for them.

The facts on GPUs are in `accounting/gpus.csv`. Such devices have no kinds of memory,
so JAX drops the kind of arguments; and cuDNN cannot be asked for its version. Both are
put right here. If JAX has changed, `find_reason` tells why nothing can be compiled.
"""

from collections.abc import Iterator, Mapping
import contextlib
import importlib.util
import os
from typing import Any

import jax
from jax.experimental import topologies

from bamboo_jax import base
from bamboo_jax.accounting import machines

_PLUGINS = ("jax_cuda12_plugin", "jax_plugins")
# Functions of LLVM that programs need, from a wheel or from CUDA.
_LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"
_CUDA = "/usr/local/cuda"
_EXTRA = "pip install 'bamboo_jax[gpu_compile]', in an environment of its own"
_CUDNN_VERSION = 91000
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


def find_reason() -> str | None:
  """Returns an obstacle to compiling for GPUs; None if there is none."""
  if not all(map(importlib.util.find_spec, _PLUGINS)):
    return f"the plugin of JAX for GPUs is not installed: {_EXTRA}"
  import jax_cuda12_plugin.version as plugin

  version = plugin.__version__
  if version != jax.__version__:
    return (
        f"jax-cuda12-plugin is of version {version} and JAX of "
        f"{jax.__version__}: install the same, as with {_EXTRA}"
    )
  if not any(os.path.exists(f"{root}/{_LIBDEVICE}") for root in _find_cuda()):
    return f"nvidia-cuda-nvcc-cu12 is not installed: {_EXTRA}"
  try:
    _modules()
  except (ImportError, AttributeError) as error:
    return f"jax {jax.__version__} has no longer what this needs: {error}"
  return None


def _find_cuda() -> list[str]:
  """Returns where JAX and XLA look for CUDA."""
  nvidia = importlib.util.find_spec("nvidia")
  places = nvidia.submodule_search_locations or () if nvidia else ()
  return [*(f"{place}/cuda_nvcc" for place in places), _CUDA]


def _modules() -> tuple[Any, Any, Any]:
  """Returns the modules of JAX that are changed; `AttributeError` if new."""
  from jax._src.cudnn import fused_attention_stablehlo as attention
  from jax._src.interpreters import mlir, pxla

  for module, name in (
      (attention, "check_cudnn_version"),
      (mlir, "lower_jaxpr_to_module"),
      (mlir, "_get_mem_kind"),
      (pxla, "are_all_shardings_default_mem_kind"),
  ):
    getattr(module, name)
  return attention, mlir, pxla


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


def make_devices(gpu: machines.Machine, count: int) -> list[jax.Device]:
  """Returns GPUs of one process for which programs can be compiled."""
  return topologies.get_topology_desc(
      platform="cuda",
      topology_name="",
      target_config=describe(gpu),
      topology=f"1x1x{count}",  # Slices, hosts of a slice, GPUs of a host.
  ).devices


def find_costs(compiled: jax.stages.Compiled) -> Mapping[str, float]:
  """Returns XLA's cost analysis, which JAX has only for devices that are there."""
  from jax._src.lib import xla_client

  executable: Any = compiled.runtime_executable()
  (module,) = executable.hlo_modules()
  analyse: Any = xla_client._xla.hlo_module_cost_analysis
  found = analyse(jax.devices("cpu")[0].client, module)
  return {"flops": 0.0, "bytes accessed": 0.0, **found}


def prepare(flags: str = "") -> None:
  """Prepares JAX to compile for GPUs, with `flags` added to those of XLA.

  Call it before JAX starts, and only if `find_reason` returns None. From now on
  attention of cuDNN is compiled without cuDNN installed.
  """
  given = os.environ.get("XLA_FLAGS", "")
  os.environ["XLA_FLAGS"] = f"{given} {flags}".strip()
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # No "no GPU is used".
  jax.config.update("jax_platforms", "cpu")  # Or JAX checks CUDA's versions.
  # Without a GPU an executable cannot be loaded again.
  jax.config.update("jax_enable_compilation_cache", False)
  attention, _, _ = _modules()
  attention.check_cudnn_version = lambda: _CUDNN_VERSION


@contextlib.contextmanager
def host_arguments(count: int) -> Iterator[None]:
  """While entered, the last `count` arguments of programs lie on the host."""
  _, mlir, pxla = _modules()
  lower, are_default = (mlir.lower_jaxpr_to_module, pxla.are_all_shardings_default_mem_kind)

  def lower_with_kinds(*args: Any, **kwargs: Any) -> Any:
    total, calls = len(kwargs["arg_shardings"]), iter(range(2**31))

    def kind_of(_: Any) -> str | None:  # Of arguments, then of results.
      i = next(calls)
      if total - count <= i < total:
        return "pinned_host"
      return "device" if i < total else None

    former, mlir._get_mem_kind = mlir._get_mem_kind, kind_of
    try:
      return lower(*args, **kwargs | {"all_default_mem_kind": False})
    finally:
      mlir._get_mem_kind = former

  mlir.lower_jaxpr_to_module = lower_with_kinds
  pxla.are_all_shardings_default_mem_kind = lambda _: False
  try:
    yield
  finally:
    mlir.lower_jaxpr_to_module = lower
    pxla.are_all_shardings_default_mem_kind = are_default
