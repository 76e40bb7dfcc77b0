"""Checks of the device itself: its software, its allocator, and copies to host memory.

The planner counts bytes: what is allocated must show in the statistics, what is
freed must come back, and a donated argument must not exist twice. Residuals of a
redundant forward pass wait in `pinned_host` memory. That is free only if they get
there and back with all their bits, and while the device computes.
"""

import os
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from tests.gpu import child

# What sets the allocator of GPUs.
_VARIABLES = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",  # An old name of it.
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT",
)
_NUM_ROWS = 16  # Of the array that is moved.


def check_device(settings):
  """Finds what there is; a problem if a GPU is needed and there is none."""
  device = jax.devices()[0]
  values = {
      "platform": device.platform,
      "kind": device.device_kind,
      "num_devices": len(jax.devices()),
      "memories": [m.kind for m in device.addressable_memories()],
      "runtime": " ".join(device.client.platform_version.split()),
      "jax": jax.__version__,
      "jaxlib": jaxlib.__version__,
      "python": platform.python_version(),
  }
  problems = []
  if settings.needs_gpu and device.platform == "cpu":
    problems.append(
        "JAX sees no GPU; install the extra cuda12 or cuda13 of this package, "
        "or use --smoke to try the checks themselves on small sizes"
    )
  return child.Found(values, problems)


def check_memory(settings):
  """Finds the settings of the allocator, and whether its figures add up."""
  values = {name: os.environ.get(name) for name in _VARIABLES}
  device = jax.devices()[0]
  stats = device.memory_stats()
  if not stats:
    problem = f"no memory statistics on {device.platform}"
    return child.Found(values, problems=[problem] if settings.needs_gpu else [])
  num_bytes = settings.copy_mib << 20
  moments = watch(device, device.memory_stats, num_bytes=num_bytes)
  values |= {**moments, "num_bytes": num_bytes}
  return child.Found(values, find_problems(**moments, num_bytes=num_bytes))


def watch(device, read_stats, *, num_bytes):
  """Makes, donates and frees one array; returns the statistics each time.

  Its size is a multiple of 4.
  """
  place = jax.sharding.SingleDeviceSharding(device)
  like = jax.ShapeDtypeStruct((num_bytes // 4,), jnp.float32, sharding=place)
  # Compiled and not yet run: the peak must not have seen the array before.
  make = jax.jit(lambda: jnp.ones_like(like), out_shardings=place)
  make = make.lower().compile()
  add = jax.jit(lambda a: a + 1, donate_argnums=0).lower(like).compile()

  def read(*arrays):
    """Returns the statistics once all that was dispatched has finished."""
    jax.block_until_ready((arrays, jax.device_put(jnp.zeros(1) + 1, device)))
    return dict(read_stats())

  moments = {"before": read()}
  array = make()
  moments["held"] = read(array)
  array = add(array)
  moments["donated"] = read(array)
  del array
  moments["freed"] = read()
  return moments


def find_problems(*, before, held, donated, freed, num_bytes):
  """Returns what is wrong with the statistics of the moments of `watch`."""
  in_use = lambda stats: stats["bytes_in_use"] - before["bytes_in_use"]
  slack = num_bytes // 16  # Allocations are rounded up.
  problems = []
  if not num_bytes <= in_use(held) <= num_bytes + slack:
    problems.append(f"an array of {num_bytes} bytes shows as {in_use(held)} in use")
  if in_use(donated) > num_bytes + slack:
    problems.append(f"after donation {in_use(donated)} bytes are in use for {num_bytes}")
  grown = donated.get("peak_bytes_in_use", 0) - held.get("peak_bytes_in_use", 0)
  if grown > slack:
    problems.append(f"a donated argument was copied: the peak grew by {grown}")
  if in_use(freed) > slack:
    problems.append(f"{in_use(freed)} bytes are still in use after freeing")
  return problems


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
