"""The bits of long sums, in processes of their own; 3 s each."""

import os
import subprocess
import sys

from absl.testing import absltest

_CODE = """
import hashlib, sys
import jax, jax.numpy as jnp
from bamboo_jax.runtime import devices

devices.use_virtual_devices(int(sys.argv[1]))
sums = jax.jit(lambda a, b: (a.T @ b, jax.vjp(
    lambda w: jax.lax.conv_general_dilated(
        a.reshape(4, 32, 32, -1), w, (1, 1), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC")),
    jnp.ones((1, 1, 32, 32)))[1](b.reshape(4, 32, 32, -1))[0]))
a, b = jax.random.normal(jax.random.key(0), (2, 4096, 32))
parts = [x.tobytes() for x in jax.device_get(sums(a, b))]
print(hashlib.sha256(b"".join(parts)).hexdigest())
"""


def run(num_devices, num_cores):
  """Returns the digest of the bits, as if the machine had so many cores."""
  cores = sorted(os.sched_getaffinity(0))[:num_cores]
  code = f"import os; os.sched_setaffinity(0, {cores})\n{_CODE}"
  env = {k: v for k, v in os.environ.items() if k != "NPROC"}
  return subprocess.run(
      [sys.executable, "-c", code, str(num_devices)],
      check=True,
      capture_output=True,
      text=True,
      timeout=300,
      env=env,
  ).stdout


class DevicesTest(absltest.TestCase):

  def test_bits_do_not_depend_on_the_number_of_devices_or_cores(self):
    self.assertEqual(run(1, 1), run(16, 2))


if __name__ == "__main__":
  absltest.main()
