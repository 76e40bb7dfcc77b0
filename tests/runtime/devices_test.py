"""Settings of devices and the bits of long sums, in processes of their own; 3 s each."""

import ctypes
import os
import platform
import subprocess
import sys
import unittest
from unittest import mock

from absl.testing import absltest, parameterized
import jax

from bamboo_jax.runtime import devices as devices_lib

_BITS = """
import hashlib, os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{num_cores}])
import jax, jax.numpy as jnp
from bamboo_jax.runtime import devices

devices.use_virtual_devices({num_devices})
a, b = jax.random.normal(jax.random.key(0), (2, 4096, 32))
convolve = lambda a, w: jax.lax.conv_general_dilated(
    a.reshape(16, 16, 16, 32), w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
for function in (
    lambda a, b: a.T @ b,
    lambda a, b: jax.vjp(convolve, a, jnp.ones((1, 1, 32, 128)))[1](b.reshape(16, 8, 8, 128)),
):
  parts = jax.tree.leaves(jax.device_get(jax.jit(function)(a, b)))
  print(hashlib.sha256(b"".join(x.tobytes() for x in parts)).hexdigest())
"""
_THREADS = """
import os
from bamboo_jax.runtime import devices

for given in {given}:
  for name in ("NPROC", "BAMBOO_JAX_NPROC"):
    os.environ.pop(name, None)
  os.environ |= given
  devices.use_virtual_devices(1, distinct=True)
  print(os.environ["NPROC"])
"""
_PLATFORMS = """
import jax
from bamboo_jax.runtime import compat, devices

compat.sees_nvidia_gpu = lambda: False
compat.add_cpu_backend(1)
for platforms in ("cuda", "cuda,cpu", "other", "apart"):
  jax.config.update("jax_platforms", platforms)
  try:
    devices.use_virtual_devices(1)
    devices.place_nodes([0], apart=platforms == "apart")
  except ValueError as error:
    print(error)
"""
# Allocates, writes and frees 48 MiB eight times in a thread that starts after
# the settings; prints the page faults of the last six times.
_FAULTS = """
import resource
import threading
import numpy as np
from bamboo_jax.runtime import devices

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({num_calls}):
  devices.keep_freed_memory()

def work():
  for i in range(8):
    if i == 2:
      before = faults()
    blocks = [np.empty(size << 18, np.float32) for size in (16, 32)]
    for block in blocks:
      block[::1024] = 1
    del block, blocks
  print(faults() - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def run(code):
  """Returns the lines that a process prints."""
  env = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")}
  done = subprocess.run(
      [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env
  )
  assert not done.returncode, done.stderr
  return done.stdout.splitlines()


class DevicesTest(absltest.TestCase):

  def test_bits_do_not_depend_on_devices_or_cores(self):
    one, other = (
        run(_BITS.format(num_devices=devices, num_cores=cores))
        for devices, cores in ((1, 1), (16, 2))
    )
    self.assertLen(one, 2)
    self.assertEqual(one, other)

  def test_threads_of_distinct_devices(self):
    wanted = (
        ({}, "8"),
        ({"NPROC": "3"}, "3"),  # The user's.
        ({"NPROC": "2", "BAMBOO_JAX_NPROC": "2"}, "8"),  # Of a parent's run.
        ({"NPROC": "3", "BAMBOO_JAX_NPROC": "2"}, "3"),
        ({"BAMBOO_JAX_NPROC": "2"}, "8"),
    )
    found = run(_THREADS.format(given=[given for given, _ in wanted]))
    self.assertEqual(found, [want for _, want in wanted])

  def test_a_platform_that_is_not_there(self):
    found = run(_PLATFORMS)
    for line, message in zip(
        found,
        (
            "JAX_PLATFORMS='cuda' names a GPU, and this machine shows none",
            "names a GPU",
            "Unable to initialize backend 'other'",
            "Add ',cpu' to it.",  # Transfers need it.
        ),
        strict=True,
    ):
      self.assertIn(message, line)

  def test_mesh_of_more_devices_than_there_are(self):
    message = "mesh takes 64 x 2 devices, and this process has 8 of 'cpu'"
    with self.assertRaisesRegex(ValueError, message):
      devices_lib.compute_of(jax.devices()[0], (64, 2))


class AllocatorTest(parameterized.TestCase):

  @unittest.skipUnless(platform.libc_ver()[0] == "glibc", "needs glibc")
  def test_freed_blocks_are_used_again(self):
    kept, default = (int(run(_FAULTS.format(num_calls=count))[0]) for count in (2, 0))
    self.assertLess(kept, 100)
    self.assertGreater(default, 100)

  @parameterized.parameters(
      ("glibc", [], True, 3),
      ("glibc", [(-3, 1024 << 20)], True, 4),
      ("glibc", [(-3, 1024 << 20), (-3, 32 << 20)], False, 4),
      ("glibc", [(-8, 1)], False, 3),
      ("musl", [], True, 0),
  )
  def test_refusals(self, library, refused, is_kept, num_calls):
    mallopt = mock.Mock(side_effect=lambda *call: int(call not in refused))
    with (
        mock.patch.object(ctypes, "CDLL", return_value=mock.Mock(mallopt=mallopt)),
        mock.patch.object(platform, "libc_ver", return_value=(library, "")),
        (self.assertNoLogs if is_kept else self.assertLogs)(level="WARNING"),
    ):
      devices_lib.keep_freed_memory()
    self.assertEqual(mallopt.call_count, num_calls)
    self.assertLessEqual(max((call.args[1] for call in mallopt.mock_calls), default=0), 2**31 - 1)
