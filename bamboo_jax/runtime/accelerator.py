"""Settings of processes that compute on GPUs, made before JAX starts.

Replicas stay equal to the bit only if a program always gives the same bits. On
GPUs XLA must be told to add in a fixed order and to choose kernels without
measuring. Its first choice for products would then be Triton's smallest tiles,
so products are left to cuBLASLt. Several processes share a GPU if each is given
a fraction of its memory.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
import os
import re

_DETERMINISTIC = "--xla_gpu_deterministic_ops"
_TRITON = "--xla_gpu_enable_triton_gemm"
_GRAPHS = "xla_gpu_enable_command_buffer"
# All that XLA puts in CUDA graphs by default, and loops; what depends on no
# result in a graph runs beside it.
_GRAPH_OPTIONS = {
    _GRAPHS: ("CONDITIONAL,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION," "FUSION,WHILE"),
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
}
_FRACTION = "XLA_CLIENT_MEM_FRACTION"
_FORMER_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # Not beside the other.
_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICES = "/dev"
_GPU_NAMES = ("cuda", "gpu", "rocm")


def find_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
  """Returns the GPUs of this machine that processes with `environ` see."""
  from bamboo_jax.runtime import compat  # Imports JAX; commands come first.

  return list_gpus(environ, is_seen=compat.sees_nvidia_gpu(), device_files=os.listdir(_DEVICES))


def list_gpus(
    environ: Mapping[str, str], *, is_seen: bool, device_files: Iterable[str]
) -> tuple[str, ...]:
  """Returns the GPUs visible to processes with these variables; pure.

  Args:
    environ: Variables of the processes.
    is_seen: Whether JAX would start CUDA on this machine.
    device_files: Names in /dev. Without a numbered one, as on WSL, there is one
      GPU.
  """
  if not is_seen:
    return ()
  given = environ.get(_VISIBLE)
  if given is not None:
    return tuple(gpu.strip() for gpu in given.split(",") if gpu.strip())
  count = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in device_files)
  return tuple(str(i) for i in range(max(1, count)))


def find_platform(environ: Mapping[str, str], gpus: Sequence[str]) -> str:
  """Returns the platform that JAX will choose: "gpu", "cpu", or another."""
  first = environ.get("JAX_PLATFORMS", "").split(",")[0].strip().lower()
  if not first:
    return "gpu" if gpus else "cpu"
  return "gpu" if first in _GPU_NAMES else first


def set_determinism(environ: MutableMapping[str, str]) -> None:
  """Sets the flags of XLA for equal bits on GPUs, unless the user has set them.

  Call before JAX starts.
  """
  if find_platform(environ, find_gpus(environ)) == "gpu":
    environ["XLA_FLAGS"] = add_determinism(environ.get("XLA_FLAGS", ""))


def add_determinism(flags: str) -> str:
  """Returns flags of XLA with those for equal bits, unless one is set."""
  if f"{_DETERMINISTIC}=false" in flags:
    return flags
  for name, value in ((_DETERMINISTIC, "true"), (_TRITON, "false")):
    if name not in flags:
      flags = f"{flags} {name}={value}".strip()
  return flags


def find_graph_options(platform: str, environ: Mapping[str, str]) -> dict[str, str] | None:
  """Returns options for a program whose loops should not make the host wait.

  Outside of a CUDA graph the host reads the condition of a loop whose length
  depends on data. None without a GPU, or if the user has set a flag of graphs.
  """
  is_set = _GRAPHS in environ.get("XLA_FLAGS", "")
  return None if is_set or platform not in _GPU_NAMES else _GRAPH_OPTIONS


def check_fraction(fraction: float | None, *, num_workers: int, gpus: Sequence[str]) -> None:
  """Raises `ValueError` if workers would take more than all of a GPU."""
  per_gpu = -(-num_workers // max(1, len(gpus)))
  if fraction is None:
    return
  if not 0 < fraction <= 1 or fraction * per_gpu > 1 + 1e-9:
    raise ValueError(
        f"--device_memory_fraction must be above 0 and at most "
        f"{1 / per_gpu:.3g}, as {per_gpu} of {num_workers} workers share a "
        f"GPU; got {fraction}, {fraction * per_gpu:.3g} in sum."
    )


def take_fraction(environ: MutableMapping[str, str], fraction: float | None) -> None:
  """Limits the GPU memory that JAX allocates in this process or a child."""
  if fraction is not None:
    environ.pop(_FORMER_FRACTION, None)
    environ[_FRACTION] = str(fraction)


def share_with_child(environ: MutableMapping[str, str]) -> None:
  """Lets this process and a child allocate GPU memory as they need it."""
  environ.setdefault(_PREALLOCATE, "false")


def give_gpu(environ: Mapping[str, str], gpu: str | None) -> dict[str, str]:
  """Returns the environment of a worker with a GPU, if there is any."""
  return {**environ, _VISIBLE: gpu} if gpu else {**environ}
