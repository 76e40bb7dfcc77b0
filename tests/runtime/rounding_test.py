import json
import os
from unittest import mock

from absl.testing import parameterized
import jax

from bamboo_jax.runtime import rounding

_CPU = """
processor	: 0
vendor_id	: GenuineIntel
model name	: Xeon
cpu MHz		: 2000.1
flags		: sse avx

processor	: 1
model name	: Other
"""


class RoundingTest(parameterized.TestCase):

  def test_is_plain_and_repeats(self):
    found = rounding.describe()
    self.assertEqual(json.loads(json.dumps(found)), found)
    self.assertEqual(rounding.describe(), found)
    self.assertEqual(found["versions.jax"], jax.__version__)

  @parameterized.named_parameters(
      ("threads", "NPROC", "93", "threads", 93),
      ("tf32", "NVIDIA_TF32_OVERRIDE", "0", None, "0"),
      ("flags", "XLA_FLAGS", "--xla_dump_to=/d --a=2", None, "--a=2"),
  )
  def test_variable(self, variable, value, key, want):
    with mock.patch.dict(os.environ, {variable: value}):
      found = rounding.describe()
    self.assertEqual(found[key or f"environment.{variable}"], want)

  @parameterized.parameters(
      ("jax_threefry_partitionable", False),
      ("jax_default_prng_impl", "rbg", "environment.compiler"),
  )
  def test_setting_of_jax(self, name, value, group=None):
    def find():
      found = rounding.describe()
      return found[group][name] if group else found[f"environment.{name}"]

    before = jax.config.values[name]
    self.assertEqual(find(), before)
    self.addCleanup(jax.config.update, name, before)
    jax.config.update(name, value)
    self.assertEqual(find(), value)

  def test_processor(self):
    found = []
    for flags in ("avx", "avx", "avx2"):
      cpu = f"x86_64\nvendor_id: x\nmodel name: Fast 7\nflags: {flags}"
      with mock.patch.object(rounding, "describe_processor", return_value=cpu):
        found.append(rounding.describe()["processor"])
    self.assertEqual(found[0], found[1])
    self.assertNotEqual(found[1], found[2])
    self.assertStartsWith(found[0], "Fast 7 ")

  @parameterized.parameters(
      ("2000.1", "800.0", True),  # The clock changes all the time.
      ("processor	: 1", "processor	: 2", True),
      ("sse avx", "sse", False),
      ("Xeon", "EPYC", False),
  )
  def test_cpu(self, old, new, is_same):
    before = rounding.parse_cpu(_CPU)
    after = rounding.parse_cpu(_CPU.replace(old, new))
    self.assertIn("flags: sse avx", before)
    self.assertEqual(before == after, is_same)

  @parameterized.parameters((2, 8, True), (8, 16, False), (16, 16, True))
  def test_threads(self, old, new, is_same):
    """These tests have 8 devices, so at least 8 threads."""
    hosts = []
    for threads in (old, new):
      with mock.patch.dict(os.environ, NPROC=str(threads)):
        hosts.append(rounding.describe_host())
    self.assertEqual(hosts[0] == hosts[1], is_same)
