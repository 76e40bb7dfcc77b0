"""The devices that nodes run on.

Nodes of one process take its devices in turn: without accelerators these are
virtual devices, which XLA:CPU runs concurrently on the available cores.

XLA:CPU must round alike in one process and in many, on any machine, but it
splits some products and convolutions by its number of threads, which is the
larger of the numbers of cores and of devices. So the number is fixed, and nodes
share devices if there are more nodes. Transposes are kept out of products,
because long products of transposed matrices depend most on the number of
threads.

Sums of gradients and transfers may use other devices than those on which a node
computes: with a mesh for each node, devices of the CPU backend, while nodes
compute on a second CPU backend or on accelerators.
"""

from collections.abc import Sequence
import ctypes
import os
import platform

from absl import logging
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.models import sharding as sharding_lib
from bamboo_jax.runtime import accelerator, compat, places, program_store, settings

# XLA reads it when the CPU backend starts; a user may set another number, the
# same on all machines. More threads cost time: 8 are a third slower on one
# core.
_NUM_THREADS, _MANY_THREADS = 2, 8

# Parameters of mallopt(3), from <malloc.h>.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8

_INT_MAX = 2**31 - 1


def use_virtual_devices(
    num_devices: int,
    *,
    per_node: int = 1,
    distinct: bool = False,
    apart: bool = False,
    deterministic: bool = True,
) -> None:
  """Configures JAX in this process; call before its backends start.

  Sets devices and threads of the CPU backend, the memory allocator and the
  cache of executables; other backends keep their devices. If JAX has started
  already, as in a notebook, nodes share the devices that exist.

  Args:
    num_devices: Maximum number of virtual devices.
    per_node: Devices on which each node computes; more than one needs `apart`.
    distinct: Whether nodes cannot share devices, as in programs over all of
      them; then XLA has 8 threads. With more than 8 devices long sums may have
      other bits.
    apart: Whether nodes compute on other devices than those of transfers;
      always so on accelerators.
    deterministic: Whether programs on GPUs must give the same bits every time.

  Raises:
    ValueError: JAX has started already with too few devices that nodes cannot
      share; or JAX_PLATFORMS names a GPU and the machine has none.
  """
  platforms = jax.config.jax_platforms or ""
  if "cuda" in platforms.split(",") and not compat.sees_nvidia_gpu():
    raise ValueError(  # JAX would ignore it silently.
        f"JAX_PLATFORMS={platforms!r} names a GPU, and this machine shows none."
    )
  keep_freed_memory()
  program_store.use()
  threads = _MANY_THREADS if distinct else _NUM_THREADS
  is_started = compat.has_devices()
  if is_started:
    _warn_of_other_flags(threads)
  else:
    _set_environment(threads, deterministic=deterministic)
  if not distinct:
    most = int(os.environ.get(settings.THREADS, threads))
    num_devices = min(num_devices, most)
  if is_started:
    found = len(transfer_devices() if apart else jax.devices())
    if distinct and found < num_devices:
      raise ValueError(
          f"The run needs {num_devices} devices, and JAX was started with "
          f"{found}. Train in a new process, before anything else uses JAX."
      )
    return
  if apart:
    compat.add_cpu_backend(num_devices * per_node)
  jax.config.update("jax_num_cpu_devices", num_devices)


def keep_freed_memory() -> None:
  """Makes `malloc` of glibc reuse freed blocks of up to 1 GiB.

  XLA:CPU allocates the outputs and temporaries of every program afresh. By
  default glibc maps large blocks one by one, unmaps them when freed, and trims
  the heap, so the kernel zeroes every page again for each microbatch. With freed
  memory kept, a stage with a large vocabulary is a tenth faster; resident memory
  stays at the peak of the step. `mallopt` needs no environment variable.

  Call it before JAX starts its threads: they would get arenas of their own,
  which hold at most 64 MiB in one piece and return larger blocks to the kernel.
  Only logs if the C library is not glibc.
  """
  if platform.libc_ver()[0] != "glibc":
    logging.info("The C library is not glibc; its allocator is unchanged.")
    return
  mallopt = ctypes.CDLL(None).mallopt  # Returns 0 for a value that it rejects.
  # Some versions of glibc take no more than half of an arena, 32 MiB.
  is_kept = any(mallopt(_MMAP_THRESHOLD, mib << 20) for mib in (1024, 32))
  is_kept &= bool(mallopt(_TRIM_THRESHOLD, _INT_MAX))
  is_kept &= bool(mallopt(_ARENA_MAX, 1))
  if not is_kept:
    logging.warning("glibc refused settings; steps will fault in fresh pages.")


def _set_environment(threads: int, *, deterministic: bool) -> None:
  """Sets variables that backends read when they start."""
  if deterministic:
    accelerator.set_determinism(os.environ)
  flags = _flags()
  if settings.NO_FOLDING not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} {settings.NO_FOLDING}".strip()
    if "xla_disable_hlo_passes" in flags:
      logging.warning("%s is appended to XLA_FLAGS=%s.", settings.NO_FOLDING, flags)
  ours = os.environ.get(settings.OUR_THREADS)
  if os.environ.get(settings.THREADS) in (None, ours):
    for name in (settings.THREADS, settings.OUR_THREADS):
      os.environ[name] = str(threads)


def _warn_of_other_flags(threads: int) -> None:
  """Warns if JAX was started with settings that may give other bits."""
  if not (
      settings.THREADS in os.environ
      and os.environ.get(settings.OUR_THREADS) in (None, str(threads))
      and settings.NO_FOLDING in _flags()
  ):
    logging.warning(
        "JAX was started with other threads or flags of XLA than this run "
        "needs: compare hashes only with those of this process."
    )


def _flags() -> str:
  return os.environ.get("XLA_FLAGS", "")


def place_nodes(
    nodes: Sequence[base.NodeId], *, apart: bool = False
) -> dict[base.NodeId, jax.Device]:
  """Returns the device of each node, assigned round-robin.

  With `apart` it is the device used by transfers, see `compute_of`. Raises
  `ValueError` if a platform of `JAX_PLATFORMS` is not available.
  """
  try:
    devices = transfer_devices() if apart else jax.devices()
  except RuntimeError as error:  # A platform that JAX cannot start.
    raise ValueError(f"{error}") from error
  return {node: devices[i % len(devices)] for i, node in enumerate(nodes)}


def transfer_devices() -> list[jax.Device]:
  """Returns the devices of the CPU backend.

  Raises `ValueError` if JAX_PLATFORMS excludes the CPU backend.
  """
  try:
    return jax.devices("cpu")
  except RuntimeError as error:
    raise ValueError(
        "Transfers between nodes need the CPU backend beside "
        f"{jax.default_backend()!r}; got JAX_PLATFORMS="
        f"{jax.config.jax_platforms!r}. Add ',cpu' to it."
    ) from error


def is_local(device: jax.Device) -> bool:
  """Returns whether a device of any backend belongs to this process."""
  return device.process_index == device.client.process_index()


def compute_of(device: jax.Device, mesh: tuple[int, int] = (1, 1)) -> places.Place:
  """Returns where the node whose transfers use `device` computes.

  Raises `ValueError` if this process has fewer devices than `mesh`.
  """
  devices, size = jax.local_devices(), mesh[0] * mesh[1]
  if device.client is devices[0].client and size == 1:
    return device
  if size > len(devices):
    raise ValueError(
        f"config.node.mesh takes {mesh[0]} x {mesh[1]} devices, and this "
        f"process has {len(devices)} of {devices[0].platform!r}."
    )
  number = device.client.local_devices().index(device)
  first = size * (number % (len(devices) // size))
  if size == 1:
    return devices[first]
  own = np.array(devices[first : first + size]).reshape(mesh)
  return jax.sharding.Mesh(own, sharding_lib.AXES)
