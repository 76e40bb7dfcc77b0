"""Tests of `runtime.allocator`."""

import ctypes
import pathlib
import platform
import subprocess
import sys
import unittest
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.runtime import allocator

# Allocates, writes and frees 48 MiB eight times in a thread that starts after
# the settings; prints the page faults of the last six times.
_PROGRAM = """
import resource
import sys
import threading
import numpy as np
from bamboo_jax.runtime import allocator

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
if sys.argv[1] == "keep":
  allocator.keep_freed_memory()
  allocator.keep_freed_memory()

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


def _refuse(*refused):
  """Returns a `mallopt` that refuses some calls, and a log of all."""
  calls = []

  def mallopt(parameter, value):
    calls.append((parameter, value))
    return int((parameter, value) not in refused)

  return mallopt, calls


class AllocatorTest(parameterized.TestCase):

  @unittest.skipUnless(platform.libc_ver()[0] == "glibc", "needs glibc")
  def test_freed_blocks_are_used_again(self):
    def faults(mode):
      return int(
          subprocess.run(
              [sys.executable, "-c", _PROGRAM, mode],
              check=True,
              capture_output=True,
              text=True,
              cwd=pathlib.Path(__file__).parents[2],
          ).stdout
      )

    self.assertLess(faults("keep"), 100)
    self.assertGreater(faults("default"), 100)

  @parameterized.parameters(
      ([], True, 3),
      ([(-3, 1024 << 20)], True, 4),
      ([(-3, 1024 << 20), (-3, 32 << 20)], False, 4),
      ([(-8, 1)], False, 3),
  )
  def test_refusals(self, refused, is_kept, num_calls):
    mallopt, calls = _refuse(*refused)
    expect = self.assertNoLogs if is_kept else self.assertLogs
    library = mock.Mock(mallopt=mallopt)
    with mock.patch.object(ctypes, "CDLL", return_value=library):
      with mock.patch.object(platform, "libc_ver", return_value=("glibc", "")):
        with expect(level="WARNING"):
          allocator.keep_freed_memory()
    self.assertLen(calls, num_calls)
    self.assertLessEqual(max(value for _, value in calls), 2**31 - 1)

  def test_other_libraries_are_left_alone(self):
    with mock.patch.object(platform, "libc_ver", return_value=("", "")):
      with mock.patch.object(ctypes, "CDLL") as library:
        allocator.keep_freed_memory()
    library.assert_not_called()
