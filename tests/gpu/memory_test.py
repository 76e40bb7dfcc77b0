"""Whether the allocator of the device does what the planner relies on.

The planner counts bytes: what is allocated must show in the statistics, what is
freed must come back, and a donated argument must not exist twice.
"""

import os

import jax
import jax.numpy as jnp
import pytest

from tests.gpu import child

# What sets the allocator of GPUs.
_VARIABLES = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",  # An old name of it.
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT",
)


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


@pytest.mark.gpu
def test_memory(run_alone, report):
  report(run_alone(check_memory))


def test_of_live_arrays():
  def read_stats():
    return {"bytes_in_use": sum(a.nbytes for a in jax.live_arrays())}

  size = 1 << 20
  moments = watch(jax.devices()[0], read_stats, num_bytes=size)
  assert find_problems(**moments, num_bytes=size) == []


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, None),
        ({"held": (1040, 1040)}, None),  # Rounded.
        ({"held": (0, 0)}, "shows as 0"),
        ({"donated": (2000, 2000)}, "after donation 2000"),
        ({"donated": (1000, 2000)}, "copied: the peak grew by 1000"),
        ({"freed": (1000, 1000)}, "still in use"),
    ],
)
def test_problems(changes, want):
  moments = dict(before=(0, 0), held=(1000, 1000), donated=(1000, 1000), freed=(0, 1000))
  stats = {
      moment: {"bytes_in_use": in_use, "peak_bytes_in_use": peak}
      for moment, (in_use, peak) in (moments | changes).items()
  }
  problems = find_problems(**stats, num_bytes=1000)
  assert bool(problems) == bool(want)
  assert want is None or want in problems[0]
