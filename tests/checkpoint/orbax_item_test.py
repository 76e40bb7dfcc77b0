"""Writes an item in one of many processes of multi-controller JAX."""

import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
import numpy as np

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_ARRAYS = {
    "head": {
        "params/w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "slots/count": np.array(4, np.int64),
        "empty": np.zeros((0, 2), np.float32),
    }
}


def write(number, path):
  """Writes an item in the process of a node; the others never come."""
  from bamboo_jax.runtime.spmd.processes import coordination

  coordination.connect(number)
  import jax

  from bamboo_jax.checkpoint import orbax_item

  assert jax.process_index() == number + 1
  assert jax.process_count() > number + 2
  orbax_item.write_item(pathlib.Path(path), _ARRAYS)
  os._exit(0)


class OrbaxItemTest(absltest.TestCase):

  def test_a_process_writes_alone_among_many(self):
    # Starts a process that imports JAX, 1 s.
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "it")
    code = "from tests.checkpoint import orbax_item_test as t; "
    code += f"t.write(1, {str(path)!r})"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=True,
        timeout=60,
    )
    from bamboo_jax.checkpoint import arrays, orbax_item

    like = {"head": arrays.shapes_of(_ARRAYS["head"])}
    found = orbax_item.read_item(path, like)
    for name, array in _ARRAYS["head"].items():
      np.testing.assert_array_equal(found["head"][name], array, strict=True)
