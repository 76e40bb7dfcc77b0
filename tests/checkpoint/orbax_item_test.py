"""Writes items in two processes of multi-controller JAX, one of which dies.

The coordination service answers nobody any more by then.
"""

import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile

from absl.testing import absltest
import numpy as np

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NODES = (0, 1)
_ARRAYS = {
    "head": {
        "params/w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "slots/count": np.array(4, np.int64),
        "empty": np.zeros((0, 2), np.float32),
    }
}


def serve(port):
  """Runs the coordination service until the input ends."""
  from bamboo_jax.runtime.wire import coordination

  service = coordination.Service(port, numbers=_NODES)
  print("ready", flush=True)
  sys.stdin.read()
  del service
  os._exit(0)


def write_twice(port, number, path):
  """Writes an item at the start, and one more when told to."""
  from bamboo_jax.runtime.wire import coordination

  address, num_slots = f"127.0.0.1:{port}", len(_NODES) + 1
  coordination.connect(
      address, slot=number + 1, num_slots=num_slots, number=number
  )
  import jax

  from bamboo_jax.checkpoint import orbax_item

  assert jax.process_index() == number + 1
  assert jax.process_count() == num_slots
  for turn in range(2):
    orbax_item.write_item(pathlib.Path(path, f"{turn}"), _ARRAYS)
    print("written", flush=True)
    sys.stdin.readline()
  os._exit(0)


class OrbaxItemTest(absltest.TestCase):

  def start(self, function, *arguments):
    text = ", ".join(map(repr, arguments))
    code = "from tests.checkpoint import orbax_item_test as t; "
    code += f"t.{function}({text})"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    self.addCleanup(child.communicate)
    self.addCleanup(child.kill)
    return child

  def test_a_process_writes_alone_when_others_are_gone(self):
    # Starts three processes that import JAX, 5 s.
    with socket.socket() as sock:
      sock.bind(("127.0.0.1", 0))
      port = sock.getsockname()[1]
    service = self.start("serve", port)
    self.assertEqual(service.stdout.readline(), "ready\n")
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    paths = [root / "a", root / "b"]
    nodes = [
        self.start("write_twice", port, node, str(path))
        for node, path in zip(_NODES, paths, strict=True)
    ]
    for node in nodes:
      self.assertEqual(node.stdout.readline(), "written\n")
    nodes[0].kill()
    nodes[0].wait()
    service.send_signal(signal.SIGSTOP)
    nodes[1].stdin.write("\n")
    nodes[1].stdin.flush()
    said, *_ = select.select([nodes[1].stdout], [], [], 60)
    self.assertTrue(said, "It waits for the coordination service.")
    self.assertEqual(nodes[1].stdout.readline(), "written\n")
    from bamboo_jax.checkpoint import arrays
    from bamboo_jax.checkpoint import orbax_item

    like = {"head": arrays.shapes_of(_ARRAYS["head"])}
    for path in (paths[0] / "0", paths[1] / "0", paths[1] / "1"):
      found = orbax_item.read_item(path, like)
      for name, array in _ARRAYS["head"].items():
        np.testing.assert_array_equal(found["head"][name], array, strict=True)
