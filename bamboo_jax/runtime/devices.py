"""The devices that nodes run on.

Nodes of one process share its devices, in turn: without accelerators virtual
ones, which XLA:CPU runs side by side on the cores that there are.

XLA:CPU must round alike in one process and in many, on any machine, but how it
splits some products and convolutions follows its number of threads: that of the
cores, or of the devices if they are more. So the number is fixed, and nodes
share devices if they are more. Transposes stay out of products, as long ones of
transposed matrices depend on threads most of all.

A node computes on devices of its own process. Transfers between processes join
devices of the CPU backend, which all processes know by number; on CPU both may
be the same, or the node computes on a second CPU backend, as on an accelerator.
"""

from collections.abc import Sequence
import os

from absl import logging
import jax
import numpy as np

from bamboo_jax.models import sharding as sharding_lib
from bamboo_jax.runtime import accelerator
from bamboo_jax.runtime import allocator
from bamboo_jax.runtime import compat
from bamboo_jax.runtime import places
from bamboo_jax.runtime.executables import store

_NO_FOLDING = "--xla_disable_hlo_passes=transpose-folding"
# XLA reads it when the CPU backend starts; a user may set another number, the
# same on all machines. More threads cost time: 8 a third on one core.
_VARIABLE, _NUM_THREADS, _MANY_THREADS = "NPROC", 2, 8


def use_virtual_devices(
    num_devices: int,
    *,
    per_node: int = 1,
    distinct: bool = False,
    apart: bool = False,
    deterministic: bool = True,
) -> None:
  """Sets up this process; call before anything else asks JAX for devices.

  Sets devices and threads of the CPU backend, the allocator of memory and the
  store of executables; other backends keep their devices. If JAX has been
  started already, as in a notebook, nodes share the devices that there are.
  Raises `ValueError` if they cannot, or JAX was told to use GPUs, and there are
  none.

  Args:
    num_devices: At most so many.
    per_node: On how many devices each node computes; more only `apart`.
    distinct: Whether nodes cannot share devices, as in programs over all of
      them: 8 threads. With more than 8 devices long sums may have other bits.
    apart: Whether nodes compute on other devices than those that transfers
      join; on accelerators they always do.
    deterministic: Whether programs on GPUs must repeat their bits.
  """
  platforms = jax.config.jax_platforms or ""
  if "cuda" in platforms.split(",") and not compat.sees_nvidia_gpu():
    raise ValueError(  # JAX would pass over it without a word.
        f"JAX_PLATFORMS={platforms!r} names a GPU, and this machine shows none."
    )
  allocator.keep_freed_memory()
  store.use()
  threads = _MANY_THREADS if distinct else _NUM_THREADS
  is_started = compat.has_devices()
  if not is_started:
    _set_environment(threads, deterministic=deterministic)
  elif not (_VARIABLE in os.environ and _NO_FOLDING in _flags()):
    logging.warning(
        "JAX was started before bamboo_jax could set threads and flags of XLA: "
        "compare hashes only with those of this process."
    )
  if not distinct:
    most = int(os.environ.get(_VARIABLE, threads))
    num_devices = min(num_devices, most)
  if is_started:
    if distinct and (found := len(jax.devices("cpu"))) < num_devices:
      raise ValueError(
          f"The run needs {num_devices} devices of the CPU backend, and JAX "
          f"was started with {found}. Train in a new process, before anything "
          "else uses JAX."
      )
    return
  if apart:
    compat.add_cpu_backend(num_devices * per_node)
  jax.config.update("jax_num_cpu_devices", num_devices)


def _set_environment(threads: int, *, deterministic: bool) -> None:
  """Sets variables that backends read when they start."""
  if deterministic:
    accelerator.set_determinism(os.environ)
  flags = _flags()
  if _NO_FOLDING not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} {_NO_FOLDING}".strip()
    if "xla_disable_hlo_passes" in flags:
      logging.warning("%s comes after XLA_FLAGS=%s.", _NO_FOLDING, flags)
  os.environ.setdefault(_VARIABLE, str(threads))


def _flags() -> str:
  return os.environ.get("XLA_FLAGS", "")


def place_nodes(
    nodes: Sequence[int], *, apart: bool = False
) -> dict[int, jax.Device]:
  """Returns the device of each node, given out in turn.

  With `apart` it is the one that transfers join, see `compute_of`. Raises
  `ValueError` if the platform of `JAX_PLATFORMS` cannot be had.
  """
  try:
    devices = transfer_devices() if apart else jax.devices()
  except RuntimeError as error:  # A platform that JAX cannot start.
    raise ValueError(f"{error}") from error
  return {node: devices[i % len(devices)] for i, node in enumerate(nodes)}


def transfer_devices() -> list[jax.Device]:
  """Returns the devices of all processes that transfers may join.

  Raises `ValueError` if JAX was told to leave out the CPU backend.
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


def compute_of(
    device: jax.Device, mesh: tuple[int, int] = (1, 1)
) -> places.Place | None:
  """Returns where a node computes whose transfers join `device`.

  None if that is in another process. Raises `ValueError` if this one has fewer
  devices than `mesh`.
  """
  if not is_local(device):
    return None
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
