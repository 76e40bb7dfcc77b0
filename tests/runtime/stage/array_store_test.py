"""What a node keeps of a step, and in which memory."""

from absl.testing import absltest
import jax.numpy as jnp

from bamboo_jax.runtime.stage import array_store as store_lib

ARRAY = jnp.arange(6.0)


def kinds(store):
  return {array.sharding.memory_kind for array in store.arrays()}


class StoreTest(absltest.TestCase):

  def test_what_was_sent_is_kept_on_the_host_or_dropped(self):
    for keep in (True, False):
      store = store_lib.StepArrays(keep=keep)
      store.activations[0, 0] = ARRAY
      store.grads[0, 1] = ARRAY
      for held, key in ((store.activations, (0, 0)), (store.grads, (0, 1))):
        sent = store.send(held, key)
        self.assertEqual(sent.sharding.memory_kind, "device")
      self.assertEqual(kinds(store), {"pinned_host"} if keep else set())

  def test_the_copy_that_stays_is_sent_if_links_send_from_host_memory(self):
    store = store_lib.StepArrays(keep=True, sends_host=True)
    store.activations[0, 0] = ARRAY
    sent = store.send(store.activations, (0, 0))
    self.assertEqual(sent.sharding.memory_kind, "pinned_host")
    self.assertIs(sent, store.send(store.activations, (0, 0)))
