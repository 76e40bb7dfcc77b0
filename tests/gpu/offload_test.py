"""Whether host memory is good for what redundant forward passes keep.

Residuals of a redundant forward pass wait in `pinned_host` memory. That is free
only if they get there and back with all their bits, and while the device
computes.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.gpu import child, settings as settings_lib

_NUM_ROWS = 16  # Of the array that is moved.


def check_offload(settings):
  """Moves an array to host memory and back, outside and inside of jit."""
  device = jax.devices()[0]
  num_bytes = settings.copy_mib << 20
  array = _make_array(device, num_bytes)
  factor = _make_factor(device, settings.product_size)
  times, problems = {}, []
  for way in ("outside jit", "inside jit"):
    moved = array
    for kind in ("pinned_host", "device"):
      try:
        copy, both = _make_copies(way, kind, device)
        found = _time_all(copy, both, moved, factor, settings)
        times[f"{way} to {kind}"] = {**found, "hidden_share": overlap_share(**found)}
        moved = copy(moved)
      except Exception as error:  # The other way is to be tried all the same.
        problems.append(f"{way} to {kind}: {child.describe(error)}")
        break
      if moved.sharding.memory_kind != kind:
        problems.append(f"{way} to {kind}: went to {moved.sharding.memory_kind}")
    if not np.array_equal(_bits(array), _bits(moved)):
      problems.append(f"{way}: the bits changed")
  return child.Found(times, problems)


def overlap_share(*, compute_ms, copy_ms, both_ms):
  """Returns which share of the shorter of two things the longer one hides.

  0 if together they take as long as one after the other, 1 if together they
  take as long as the longer one alone.
  """
  hidden_ms = compute_ms + copy_ms - both_ms
  return min(max(hidden_ms / min(compute_ms, copy_ms), 0.0), 1.0)


def _make_array(device, num_bytes):
  """Returns all kinds of bits, those that are not numbers included."""
  shape = (_NUM_ROWS, num_bytes // 2 // _NUM_ROWS)
  bits = jax.random.bits(jax.random.key(0), shape, jnp.uint16)
  array = jax.lax.bitcast_convert_type(bits, jnp.bfloat16)
  return jax.device_put(array, device)


def _make_factor(device, size):
  factor = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5
  return jax.device_put(factor.astype(jnp.bfloat16), device)


def _make_copies(way, kind, device):
  """Returns a copy of an array, and the same with products beside it.

  Args:
    way: Whether the copy, and then the products with it, are one program.
    kind: Kind of memory to copy to.
    device: Where the products run.
  """
  on = lambda kind: jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
  if way == "outside jit":
    copy = lambda a: jax.device_put(a, on(kind))
    return copy, lambda a, f, count: (_products(f, count), copy(a))
  space = jax.memory.Space
  goal = space.Host if kind == "pinned_host" else space.Device
  move = lambda a: jax.device_put(a, goal)
  both = lambda a, f, count: (_products(f, count), move(a))
  return (
      jax.jit(move, out_shardings=on(kind)),
      jax.jit(both, out_shardings=(on("device"), on(kind))),
  )


def _time_all(copy, both, array, factor, settings):
  """Returns the arguments of `overlap_share`, compute as long as the copy."""
  num_repeats = settings.num_repeats
  copy_ms = _time(copy, array, num_repeats=num_repeats)
  once_ms = _time(_products, factor, 1, num_repeats=num_repeats)
  count = max(1, round(copy_ms / once_ms))
  return {
      "compute_ms": _time(_products, factor, count, num_repeats=num_repeats),
      "copy_ms": copy_ms,
      "both_ms": _time(both, array, factor, count, num_repeats=num_repeats),
  }


@jax.jit
def _products(factor, count):
  """Multiplies `count` times; values stay of the same size."""
  return jax.lax.fori_loop(0, count, lambda _, a: a @ factor, factor)


def _time(call, *args, num_repeats):
  """Returns the median of the ms from the call until its result is ready."""
  times = []
  for _ in range(num_repeats + 1):
    start = time.perf_counter()
    jax.block_until_ready(call(*args))
    times.append(1e3 * (time.perf_counter() - start))
  return statistics.median(times[1:])


def _bits(array):
  return np.asarray(array).view(np.uint16)


@pytest.mark.gpu
def test_offload(run_alone, report):
  report(run_alone(check_offload))


def test_on_this_device():
  found = check_offload(settings_lib.SMOKE)
  assert found.problems == []
  assert len(found.values) == 4


@pytest.mark.parametrize(("both_ms", "want"), [(6.0, 0.0), (5.0, 0.5), (4.0, 1.0), (3, 1), (9, 0)])
def test_overlap_share(both_ms, want):
  assert overlap_share(compute_ms=4.0, copy_ms=2.0, both_ms=both_ms) == want
