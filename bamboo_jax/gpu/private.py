"""Devices of a GPU that is not there, and the private API of JAX for them.

Such devices have no kinds of memory, so JAX drops the kind of arguments; and
cuDNN cannot be asked for its version. Both are put right here. If JAX has
changed, `find_reason` tells why nothing can be compiled.
"""

from collections.abc import Iterator, Mapping
import contextlib
import importlib.util
import os
from typing import Any

import jax
from jax.experimental import topologies

_PLUGINS = ("jax_cuda12_plugin", "jax_plugins")
# Functions of LLVM that programs need, from a wheel or from CUDA.
_LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"
_CUDA = "/usr/local/cuda"
_EXTRA = "pip install 'bamboo_jax[gpu_compile]', in an environment of its own"
_CUDNN_VERSION = 91000


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


def make_devices(description: str, count: int) -> list[jax.Device]:
  """Returns GPUs of one process for which programs can be compiled.

  Args:
    description: See `targets.Gpu`.

  Raises:
    RuntimeError: XLA cannot read the description.
  """
  return topologies.get_topology_desc(
      platform="cuda",
      topology_name="",
      target_config=description,
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
