"""Links carry arrays in order, whatever their ends."""

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime.wire import link as link_lib

LIKE = {
    "a": jax.ShapeDtypeStruct((2, 3), np.float32),
    "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16),
    "c": jax.ShapeDtypeStruct((), np.float32),
    "d": [jax.ShapeDtypeStruct((2, 1, 2), np.float32)],
    "e": jax.ShapeDtypeStruct((), np.int32),
}
SINGLE = jax.ShapeDtypeStruct((2, 3), np.float32)


def make_value(device, first, like):
  def numbers(a):
    return (first + jnp.arange(a.size)).astype(a.dtype).reshape(a.shape)

  return jax.device_put(jax.tree.map(numbers, like), device)


class LinkTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("copy", 0, 1, "copy", link_lib.LocalLink),
      ("ppermute", 0, 1, "ppermute", link_lib.PairLink),
      ("backwards", 1, 0, "ppermute", link_lib.PairLink),
      ("auto", 0, 1, "auto", link_lib.LocalLink),
      ("one_device", 0, 0, "auto", link_lib.LocalLink),
      ("one_device_ppermute", 0, 0, "ppermute", link_lib.LocalLink),
      ("one_array", 0, 1, "ppermute", link_lib.PairLink, SINGLE),
  )
  def test_values_arrive_in_order(
      self, source, destination, kind, cls, like=LIKE
  ):
    source, destination = jax.devices()[source], jax.devices()[destination]
    link = link_lib.make_link(source, destination, like=like, kind=kind)
    self.assertIsInstance(link, cls)
    sent = [make_value(source, i, like) for i in (1, 2, 3)]
    for value in sent:
      link.send(value)
    for value in sent:
      got = link.receive()
      chex.assert_trees_all_equal_structs(got, value)
      leaves = zip(jax.tree.leaves(got), jax.tree.leaves(value), strict=True)
      for a, b in leaves:
        self.assertEqual(a.devices(), {destination})
        self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
        np.testing.assert_array_equal(a, b)
        self.assertFalse(b.is_deleted())

  @parameterized.parameters("copy", "ppermute")
  def test_what_nobody_received_is_drained(self, kind):
    ends = jax.devices()[:2]
    link = link_lib.make_link(*ends, like=SINGLE, kind=kind)
    for first in (1, 2):
      link.send(make_value(ends[0], first, SINGLE))
    link.values.clear()
    link.send(make_value(ends[0], 3, SINGLE))
    np.testing.assert_array_equal(
        link.receive(), make_value(ends[0], 3, SINGLE)
    )

  def test_unknown_kind(self):
    with self.assertRaisesRegex(
        ValueError, "'tcp'.* Allowed: auto, copy, host, ppermute"
    ):
      link_lib.make_link(
          jax.devices()[0], jax.devices()[1], like=LIKE, kind="tcp"
      )
