"""The devices that nodes run on.

Nodes of one process share its devices, in turn: without accelerators virtual
ones, which XLA:CPU runs side by side on the cores that there are.

XLA:CPU must round alike in one process and in many, on any machine, but how it
splits some products and convolutions follows its number of threads: that of the
cores, or of the devices if they are more. So the number is fixed, and nodes
share devices if they are more. Transposes stay out of products, as long ones of
transposed matrices depend on threads most of all.
"""

import os

from absl import logging
import jax

from bamboo_jax.runtime import allocator
from bamboo_jax.runtime.executables import store

_NO_FOLDING = "--xla_disable_hlo_passes=transpose-folding"
# XLA reads it when the CPU backend starts; a user may set another number, the
# same on all machines. More threads cost time: 8 a third on one core.
_VARIABLE, _NUM_THREADS, _MANY_THREADS = "NPROC", 2, 8


def use_virtual_devices(num_devices: int, *, distinct: bool = False) -> None:
  """Sets up this process; call before anything else asks JAX for devices.

  Sets devices and threads of the CPU backend, the allocator of memory and the
  store of executables; other backends keep their devices.

  Args:
    num_devices: At most so many.
    distinct: Whether nodes cannot share devices, as in programs over all of
      them: 8 threads. With more than 8 devices long sums may have other bits.

  Raises:
    RuntimeError: JAX has been started already, with fewer devices.
  """
  allocator.keep_freed_memory()
  store.use()
  flags = os.environ.get("XLA_FLAGS", "")
  if _NO_FOLDING not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} {_NO_FOLDING}".strip()
    if "xla_disable_hlo_passes" in flags:
      logging.warning("%s comes after XLA_FLAGS=%s.", _NO_FOLDING, flags)
  threads = _MANY_THREADS if distinct else _NUM_THREADS
  threads = int(os.environ.setdefault(_VARIABLE, str(threads)))
  if not distinct:
    num_devices = min(num_devices, threads)
  try:
    jax.config.update("jax_num_cpu_devices", num_devices)
  except RuntimeError:
    if len(jax.devices("cpu")) < num_devices:
      raise


def place_nodes(nodes: list[int]) -> dict[int, jax.Device]:
  """Returns the device of each node, given out in turn."""
  devices = jax.devices()
  return {node: devices[i % len(devices)] for i, node in enumerate(nodes)}
