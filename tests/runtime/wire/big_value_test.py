"""A value above 4 GiB, between two processes; takes 5 GiB and half a minute.

Only with `launch/test --all`, or as
`python -m tests.runtime.wire.big_value_test KIND`, which tells the time.
"""

import pathlib
import subprocess
import sys
import time

from absl.testing import parameterized
import numpy as np

from bamboo_jax.runtime.wire import transport as transport_lib
from tests import samples
from tests.runtime.wire import transport_test

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_SIZE = (4 << 30) + (1 << 20)  # Above the default limit, and above 32 bits.
_MARKS = (0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, _SIZE - 1)
_CHILD_SECS = 300


def make(node, kind):
  endpoint = transport_test.make_endpoint(kind)
  transport = transport_lib.Transport(node, run="r", endpoint=endpoint)
  transport.begin(1)
  return transport


def send(kind, address):
  """Sends a value, of untouched memory but for some marks, then another."""
  value = np.zeros(_SIZE, np.uint8)
  for number, mark in enumerate(_MARKS, start=1):
    value[mark] = number
  transport = make(0, kind)
  print(transport.address, flush=True)  # Where it learns what has come.
  transport.set_addresses({1: address})
  transport.send(1, "big", [value])
  transport.send(1, "small", [np.array(7)])  # Waits until the first is there.
  assert transport.waited_secs > 0.0, "has not waited"
  transport.receive(1, "done")


def receive(kind):
  """Returns the marks of the value of another process, and the seconds."""
  transport = make(1, kind)
  command = [sys.executable, "-m", "tests.runtime.wire.big_value_test"]
  command += [kind, transport.address]
  with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as child:
    assert child.stdout is not None
    transport.set_addresses({0: child.stdout.readline().strip()})
    began_secs = time.monotonic()
    (value,) = transport.receive(0, "big")
    secs = time.monotonic() - began_secs
    (small,) = transport.receive(0, "small")
    assert small == 7 and value.nbytes == _SIZE, (small, value.nbytes)
    marks = [int(place) for place in np.flatnonzero(value)]
    transport.send(0, "done", [])
    assert child.wait(_CHILD_SECS) == 0
  transport.close()
  return marks, secs


def has_room():
  """Returns whether the machine has 8 GiB of free memory."""
  lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
  (kib,) = [int(l.split()[1]) for l in lines if l.startswith("MemAvailable")]
  return kib > 8 << 20


class BigValueTest(parameterized.TestCase):

  @parameterized.parameters(*transport_test.KINDS)
  def test_arrives(self, kind):
    if not samples.is_all() or not has_room():
      self.skipTest("only with --all, and with 8 GiB of free memory")
    marks, _ = receive(kind)
    self.assertEqual(marks, [*_MARKS])


if __name__ == "__main__":
  if sys.argv[2:]:
    send(*sys.argv[1:])
  else:
    found, took_secs = receive(sys.argv[1])
    assert found == [*_MARKS], found
    print(f"{_SIZE} bytes in {took_secs:.1f} s")
