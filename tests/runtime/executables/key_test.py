"""What tells executables apart, and what does not."""

import os
from unittest import mock

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime import compat
from bamboo_jax.runtime.executables import key as key_lib, program_store as store_lib

_CPU = """
processor	: 0
vendor_id	: GenuineIntel
model name	: Xeon
cpu MHz		: 2000.1
flags		: sse avx

processor	: 1
model name	: Other
"""


class _AskedError(Exception):
  """Raised in place of compiling."""


def _raise_fingerprint(compilation):
  raise _AskedError(compilation.fingerprint)


def _fingerprint(
    function=lambda x, y: (x @ y, jnp.sin(y)),
    *,
    devices=1,
    first=0,
    shape=(4, 4),
    dtype=np.float32,
    donated=(),
    memory_kind="device",
    sharded=False,
    options=None,
):
  """Returns the fingerprint of a program, by default always the same one."""
  mesh = jax.make_mesh((devices,), ("d",), devices=jax.devices()[first : first + devices])
  spec = jax.sharding.PartitionSpec("d" if sharded else None)
  place = jax.sharding.NamedSharding(mesh, spec)
  like = jax.ShapeDtypeStruct(shape, dtype, sharding=place)
  program = jax.jit(
      function, donate_argnums=donated, out_shardings=place.with_memory_kind(memory_kind)
  )
  try:
    program.lower(like, like).compile(options)
  except _AskedError as asked:
    return str(asked)
  raise AssertionError("nobody was asked")


class FingerprintTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    compat.intercept_compilations(_raise_fingerprint)
    self.addCleanup(store_lib.use)

  @parameterized.parameters(
      {"first": 3}, {"function": lambda a, b: (a @ b, jnp.sin(b))}  # Other names and lines.
  )
  def test_same(self, **changes):
    self.assertEqual(_fingerprint(), _fingerprint(**changes))
    self.assertEqual(
        _fingerprint(devices=2, sharded=True), _fingerprint(devices=2, sharded=True, first=5)
    )

  def test_different(self):
    variants = (
        {},
        {"function": lambda x, y: (x @ y, jnp.cos(y))},
        {"shape": (8, 8)},
        {"dtype": np.int32},
        {"donated": (1,)},
        {"memory_kind": "pinned_host"},
        {"devices": 2},
        {"devices": 2, "sharded": True},
        {"options": {"xla_cpu_enable_fast_math": True}},
    )
    found = {_fingerprint(**changes) for changes in variants}
    self.assertLen(found, len(variants))


class KeyTest(parameterized.TestCase):

  def test_key(self):
    key = key_lib.make_key("jit_f-1", host="x86")
    self.assertRegex(key, "^[0-9a-f]{64}$")
    self.assertEqual(key, key_lib.make_key("jit_f-1", host="x86"))
    for fingerprint, host in (("jit_f-2", "x86"), ("jit_f-1", "arm")):
      self.assertNotEqual(key, key_lib.make_key(fingerprint, host=host))

  @parameterized.parameters(
      ("2000.1", "800.0", True),  # The clock changes all the time.
      ("processor	: 1", "processor	: 2", True),
      ("sse avx", "sse", False),
      ("Xeon", "EPYC", False),
  )
  def test_cpu(self, old, new, is_same):
    before = key_lib.parse_cpu(_CPU)
    after = key_lib.parse_cpu(_CPU.replace(old, new))
    self.assertIn("flags: sse avx", before)
    self.assertEqual(before == after, is_same)

  @parameterized.parameters((2, 8, True), (8, 16, False), (16, 16, True))
  def test_threads(self, old, new, is_same):
    """These tests have 8 devices, so at least 8 threads."""
    hosts = []
    for threads in (old, new):
      with mock.patch.dict(os.environ, NPROC=str(threads)):
        hosts.append(key_lib.describe_host())
    self.assertEqual(hosts[0] == hosts[1], is_same)
