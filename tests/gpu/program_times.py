"""Times the programs of one stage on one device, on plausible data.

`profiler` times an instruction in a row, for the planner. This measures how
well the device is used: calls are dispatched back to back, so that the host is
not in the way, and every program is compiled by itself.
"""

from collections.abc import Callable, Mapping
import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib

_BURST_MS = 50.0  # Approximate time of back-to-back calls.
_MAX_BURST = 16  # Calls; their results may be in memory at once.


class StageBench:
  """One stage with state and inputs on a device, to call its programs.

  The methods start one call and return what is ready when it has finished; call
  `forward` before `backward`, and `backward` before `update`. Programs are
  compiled when first used.
  """

  def __init__(
      self, spec: spec_lib.StageSpec, *, batch: Mapping[str, np.ndarray], device: jax.Device
  ) -> None:
    unit = dataclasses.replace(spec, is_unit=True)
    self.spec, self._device = unit, device
    self._programs = programs_lib.UnitPrograms(unit)
    place = jax.sharding.SingleDeviceSharding(device)
    init = lambda: spec_lib.take(unit, spec_lib.init_layers(unit))
    self._put(jax.jit(init, out_shardings=place)())
    make = jax.jit(lambda: random_like((spec.inputs, spec.outputs)))
    self._inputs, self._grad = jax.device_put(make(), device)
    self._batch = jax.device_put({key: batch[key] for key in spec.batch_keys}, device)
    self._zero = jax.device_put(np.uint32(0), device)
    self._one = jax.device_put(np.float32(1), device)
    self._token = jax.device_put(np.zeros((1,), np.int8), device)
    self.clear()

  def clear(self) -> None:
    """Starts a new sum of gradients."""
    self.total = self.program("zeros")(self._token)

  def program(self, name: str) -> Callable[..., base.PyTree]:
    """Returns a program, compiled; if training has no use for it, by its first call."""
    self._programs.compile(name, self._device)
    return getattr(self._programs, name)

  def forward(self) -> jax.Array:
    """Runs the forward pass."""
    params, stats = self._params, self._stats
    done, self.outputs, self._saved = self.program("forward")(
        *(self._token, params, stats, self._inputs, self._batch),
        *(self._zero, self._zero, self._zero),
    )
    return done

  def redundant(self) -> jax.Array:
    """Runs the redundant forward pass, whose results go to host memory."""
    return self.program("redundant")(
        *(self._token, self._params, self._stats, self._inputs),
        *(self._batch, self._zero, self._zero, self._zero),
    )

  def backward(self) -> jax.Array:
    """Runs the backward pass of the last forward pass."""
    done, self.grad_inputs, self.total = self.program("backward")(
        *(self._token, self._params, self._inputs, self._saved, self._grad), self.total
    )
    return done

  def update(self) -> base.PyTree:
    """Runs the optimizer on the sum of the backward passes, and casts."""
    params, slots = self._state.params, self._state.slots
    self._put(self.program("update")(params, slots, self.total, self._one, self._one))
    return self._state, self._params

  def _put(self, state: spec_lib.LayerState) -> None:
    self._state, self._stats = state, state.stats
    self._params = self._programs.cast(state.params)


def time_calls(call: Callable[[], base.PyTree], *, num_repeats: int) -> tuple[float, float]:
  """Returns the times of one call alone and of one among many, in ms.

  Both are medians of warmed-up runs; `call` starts a program and returns
  results.
  """

  def milliseconds(num_calls: int) -> float:
    start = time.perf_counter()
    for _ in range(num_calls):
      result = call()
    jax.block_until_ready(result)
    return 1e3 * (time.perf_counter() - start) / num_calls

  milliseconds(2)
  alone_ms = statistics.median(milliseconds(1) for _ in range(num_repeats))
  burst = min(max(round(_BURST_MS / alone_ms), 1), _MAX_BURST)
  ms = statistics.median(milliseconds(burst) for _ in range(num_repeats))
  return alone_ms, ms


def random_like(shapes: base.PyTree) -> base.PyTree:
  """Returns normal numbers like activations; call it in a program."""
  leaves, structure = jax.tree.flatten(shapes)
  keys = jax.random.split(jax.random.key(0), max(len(leaves), 1))
  return structure.unflatten(
      jax.random.normal(key, leaf.shape, jnp.float32).astype(leaf.dtype)
      for key, leaf in zip(keys, leaves, strict=False)
  )
