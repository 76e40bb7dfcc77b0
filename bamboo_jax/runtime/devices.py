"""The devices that nodes run on.

Without accelerators each node of the process gets a virtual device of its own,
which XLA:CPU runs side by side on the cores that there are. Nodes share
accelerators if there are fewer of these.

How XLA:CPU adds up long products and convolutions depends on the number of its
threads, which is that of the cores, or of the devices if they are more. So it
is fixed here: the bits are the same in one process and in many, on any machine.
"""

import os

from absl import logging
import jax

from bamboo_jax.runtime import allocator
from bamboo_jax.runtime.executables import store

# XLA reads it when the CPU backend starts; a user may set another number, the
# same on all machines.
_VARIABLE, _NUM_THREADS = "NPROC", 40


def use_virtual_devices(num_devices: int) -> None:
  """Sets up this process; call before anything else asks JAX for devices.

  Sets the number of devices and threads of the CPU backend, the allocator of
  memory and the store of executables; other backends keep their devices.

  Raises:
    RuntimeError: JAX has been started already, with fewer devices.
  """
  allocator.keep_freed_memory()
  store.use()
  num_threads = os.environ.setdefault(_VARIABLE, str(_NUM_THREADS))
  if num_devices > int(num_threads):
    logging.warning(
        "%d devices are more than the %s threads that other processes have, so "
        "long sums may have other bits; set %s=%d in all processes.",
        *(num_devices, num_threads, _VARIABLE, num_devices),
    )
  try:
    jax.config.update("jax_num_cpu_devices", num_devices)
  except RuntimeError:
    if len(jax.devices("cpu")) < num_devices:
      raise


def place_nodes(nodes: list[int]) -> dict[int, jax.Device]:
  """Returns the device of each node, given out in turn."""
  devices = jax.devices()
  return {node: devices[i % len(devices)] for i, node in enumerate(nodes)}
