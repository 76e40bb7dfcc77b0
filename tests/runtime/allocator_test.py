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


class AllocatorTest(parameterized.TestCase):

  @unittest.skipUnless(platform.libc_ver()[0] == "glibc", "needs glibc")
  def test_freed_blocks_are_used_again(self):
    root, faults = pathlib.Path(__file__).parents[2], {}
    for mode in ("keep", "default"):
      command = [sys.executable, "-c", _PROGRAM, mode]
      faults[mode] = int(subprocess.run(command, check=True, capture_output=True, cwd=root).stdout)
    self.assertLess(faults["keep"], 100)
    self.assertGreater(faults["default"], 100)

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
      allocator.keep_freed_memory()
    self.assertEqual(mallopt.call_count, num_calls)
    self.assertLessEqual(max((call.args[1] for call in mallopt.mock_calls), default=0), 2**31 - 1)
