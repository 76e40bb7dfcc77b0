"""The devices that nodes run on.

Without accelerators each node of the process gets a virtual device of its own,
which XLA:CPU runs side by side on the cores that there are. Nodes share
accelerators if there are fewer of these.
"""

import jax

from bamboo_jax.runtime import allocator
from bamboo_jax.runtime.executables import store


def use_virtual_devices(num_devices: int) -> None:
  """Sets up this process; call before anything else asks JAX for devices.

  Sets the number of devices of the CPU backend, the memory allocator and the
  store of executables; other backends keep their devices.

  Raises:
    RuntimeError: JAX has been started already, with fewer devices.
  """
  allocator.keep_freed_memory()
  store.use()
  try:
    jax.config.update("jax_num_cpu_devices", num_devices)
  except RuntimeError:
    if len(jax.devices("cpu")) < num_devices:
      raise


def place_nodes(nodes: list[int]) -> dict[int, jax.Device]:
  """Returns the device of each node, given out in turn."""
  devices = jax.devices()
  return {node: devices[i % len(devices)] for i, node in enumerate(nodes)}
