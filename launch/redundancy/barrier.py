"""A vote: nobody goes on before all have come."""

from collections.abc import Mapping

import jax
import numpy as np

from bamboo_jax.runtime.phases import reduce as reduce_lib


class Barrier:
  """Sums a number over all nodes, one per process."""

  def __init__(self, devices: Mapping[int, jax.Device], *, rank: int) -> None:
    self._rank = rank
    self._sum = reduce_lib.ShareSum(
        list(devices.values()), like=jax.ShapeDtypeStruct((1,), np.float32)
    )
    self._one = jax.device_put(np.ones(1, np.float32), devices[rank])

  def wait(self) -> None:
    """Blocks until all processes have called this."""
    total = self._sum({self._rank: self._one})
    jax.block_until_ready(list(total.values()))
