"""The bits of long sums, in processes of their own; 3 s each."""

import os
import subprocess
import sys

from absl.testing import parameterized
import jax

from bamboo_jax.runtime import devices as devices_lib

_CODE = """
import hashlib, sys
import jax, jax.numpy as jnp
from bamboo_jax.runtime import devices

convolves = sys.argv[2] == "True"
devices.use_virtual_devices(int(sys.argv[1]))
a, b = jax.random.normal(jax.random.key(0), (2, 4096, 32))
if convolves:
  function = lambda a, b: jax.vjp(
      lambda a, w: jax.lax.conv_general_dilated(
          a.reshape(16, 16, 16, 32), w, (2, 2), "SAME",
          dimension_numbers=("NHWC", "HWIO", "NHWC")),
      a, jnp.ones((1, 1, 32, 128)))[1](b.reshape(16, 8, 8, 128))
else:
  function = lambda a, b: a.T @ b
parts = jax.tree.leaves(jax.device_get(jax.jit(function)(a, b)))
print(hashlib.sha256(b"".join(x.tobytes() for x in parts)).hexdigest())
"""


def run(num_devices, num_cores, convolves):
  """Returns the digest of the bits, as if the machine had so many cores."""
  cores = sorted(os.sched_getaffinity(0))[:num_cores]
  code = f"import os; os.sched_setaffinity(0, {cores})\n{_CODE}"
  hidden = ("NPROC", "XLA_FLAGS")
  env = {k: v for k, v in os.environ.items() if k not in hidden}
  return subprocess.run(
      [sys.executable, "-c", code, str(num_devices), str(convolves)],
      check=True,
      capture_output=True,
      text=True,
      timeout=300,
      env=env,
  ).stdout


class DevicesTest(parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_bits_do_not_depend_on_devices_or_cores(self, convolves):
    self.assertEqual(run(1, 1, convolves), run(16, 2, convolves))

  @parameterized.parameters(
      ({}, "8"),
      ({"NPROC": "3"}, "3"),  # The user's.
      ({"NPROC": "2", "BAMBOO_JAX_NPROC": "2"}, "8"),  # Of a parent's run.
      ({"NPROC": "3", "BAMBOO_JAX_NPROC": "2"}, "3"),
      ({"BAMBOO_JAX_NPROC": "2"}, "8"),
  )
  def test_threads_of_distinct_devices(self, given, want):
    code = (
        "import os\n"
        "from bamboo_jax.runtime import devices\n"
        "devices.use_virtual_devices(1, distinct=True)\n"
        "print(os.environ['NPROC'])\n"
    )
    hidden = ("NPROC", "BAMBOO_JAX_NPROC")
    env = {k: v for k, v in os.environ.items() if k not in hidden}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env | given
    )
    self.assertEqual(ended.stdout.strip(), want, msg=ended.stderr)

  def test_mesh_of_more_devices_than_there_are(self):
    message = "mesh takes 64 x 2 devices, and this process has 8 of 'cpu'"
    with self.assertRaisesRegex(ValueError, message):
      devices_lib.compute_of(jax.devices()[0], (64, 2))

  @parameterized.parameters(
      ("cuda", "JAX_PLATFORMS='cuda' names a GPU, and this machine shows none"),
      ("cuda,cpu", "names a GPU"),
      ("other", "Unable to initialize backend 'other'"),
  )
  def test_a_platform_that_is_not_there(self, platforms, message):
    code = (
        "from bamboo_jax.runtime import compat, devices\n"
        "compat.sees_nvidia_gpu = lambda: False\n"
        "devices.use_virtual_devices(1)\n"
        "devices.place_nodes([0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": platforms},
    )
    self.assertRegex(done.stderr, f"ValueError: .*{message}")

  def test_no_backend_for_transfers(self):
    code = (
        "import jax\n"
        "from bamboo_jax.runtime import compat, devices\n"
        "compat.add_cpu_backend(1)\n"
        "jax.config.update('jax_platforms', 'apart')\n"
        "devices.transfer_devices()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    self.assertIn("Add ',cpu' to it.", done.stderr)
