"""What a node keeps of a step, and in which memory."""

from absl.testing import absltest
import jax
import jax.numpy as jnp

from bamboo_jax.runtime.stage import array_store as store_lib, spec as spec_lib
from bamboo_jax.schedule import holdings as holdings_lib

ARRAY = jnp.arange(6.0)
SAVED = [spec_lib.Saved(None, residuals=[jnp.ones(3)], stats=(), loss=None)]


def kinds(store):
  return {array.sharding.memory_kind for array in store.arrays()}


def host_bytes(store):
  return sum(a.nbytes for a in store.arrays() if a.sharding.memory_kind == "pinned_host")


def on_host(*trees):
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
  return jax.device_put(trees, place)


class StoreTest(absltest.TestCase):

  def test_redundant_passes_keep_everything_in_host_memory(self):
    store = store_lib.StepArrays(keep=True)
    store.put_redundant((1, 0), *on_host(ARRAY, SAVED))
    self.assertEqual(kinds(store), {"pinned_host"})
    self.assertEqual(host_bytes(store), 4 * (6 + 3))
    one, none = frozenset({(1, 0)}), frozenset()
    want = holdings_lib.Holdings(one, none, one, none)
    self.assertEqual(store.holdings(), want)
    store.grads[1, 0] = ARRAY
    taken = [store.take_inputs((1, 0)), store.send(store.activations, (1, 0))]
    for array in jax.tree.leaves(taken):
      self.assertEqual(array.sharding.memory_kind, "device")

  def test_what_a_node_has_itself_stays_on_the_device(self):
    store = store_lib.StepArrays(keep=True)
    store.activations[0, 0] = ARRAY
    store.saved[0, 0] = SAVED
    self.assertEqual(kinds(store), {"device"})
    # Its output is there already.
    store.put_redundant((0, 0), *on_host(ARRAY, SAVED))
    self.assertEqual(host_bytes(store), 4 * 3)

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
