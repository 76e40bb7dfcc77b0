"""Executables of other machines, by a service that may answer nobody."""

import threading
from unittest import mock

from absl.testing import absltest

from bamboo_jax.base import threads
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.executables import shared as shared_lib


class Service:
  """Keeps values as JAX's service does."""

  def __init__(self):
    self.values = {}
    self.num_asked = 0
    self.answers = threading.Event()
    self.answers.set()

  def put(self, key, value):
    self.num_asked += 1
    self.answers.wait()
    is_new = key not in self.values
    self.values.setdefault(key, value)
    return is_new

  def get(self, prefix):
    self.num_asked += 1
    self.answers.wait()
    return {k: v for k, v in self.values.items() if k.startswith(prefix)}


class SharedTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.service = Service()
    self.enter_context(
        mock.patch.multiple(
            compat,
            set_coordination_value=self.service.put,
            coordination_values=self.service.get,
        )
    )

  def test_one_compiles_and_others_have_the_same(self):
    first, second = shared_lib.Shared(), shared_lib.Shared()
    self.assertIsNone(first.agree("key", None))
    first.put("key", b"program")
    self.assertEqual(second.agree("key", None), b"program")
    self.assertEqual(second.agree("key", b"another"), b"program")

  def test_nobody_waits_for_who_has_died(self):
    first, second = shared_lib.Shared(), shared_lib.Shared(wait_secs=0.1)
    self.assertIsNone(first.agree("key", None))
    self.assertIsNone(second.agree("key", None))
    self.assertEqual(second.agree("key", b"own"), b"own")

  def test_a_silent_service_is_asked_once(self):
    self.addCleanup(self.service.answers.set)
    self.service.answers.clear()
    member = shared_lib.Shared(wait_secs=0.0)
    with mock.patch.object(shared_lib, "_ANSWER_SECS", 0.05):
      found = threads.call_beside(member.agree, "key", b"own", name="test")
      self.assertEqual(found.result(timeout=60), b"own")
      self.assertIsNone(member.agree("other", None))
      member.put("other", b"program")
    self.assertEqual(self.service.num_asked, 1)
