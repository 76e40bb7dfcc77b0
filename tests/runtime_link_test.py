"""Links carry arrays in order, whatever their ends."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime import link as link_lib

LIKE = {
    "a": jax.ShapeDtypeStruct((2, 3), np.float32),
    "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16),
}


def make_value(device, first):
  value = jax.tree.map(lambda a: jnp.full(a.shape, first, a.dtype), LIKE)
  return jax.device_put(value, device)


class LinkTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("copy", 0, 1, "copy", link_lib.LocalLink),
      ("ppermute", 0, 1, "ppermute", link_lib.PairLink),
      ("backwards", 1, 0, "ppermute", link_lib.PairLink),
      ("auto", 0, 1, "auto", link_lib.LocalLink),
      ("one_device", 0, 0, "auto", link_lib.LocalLink),
      ("one_device_ppermute", 0, 0, "ppermute", link_lib.LocalLink),
  )
  def test_values_arrive_in_order(self, source, destination, kind, cls):
    source, destination = jax.devices()[source], jax.devices()[destination]
    link = link_lib.make_link(source, destination, like=LIKE, kind=kind)
    self.assertIsInstance(link, cls)
    sent = [make_value(source, i) for i in (1, 2, 3)]
    for value in sent:
      link.send(value)
    for value in sent:
      got = link.receive()
      for name in LIKE:
        self.assertEqual(got[name].devices(), {destination})
        np.testing.assert_array_equal(got[name], value[name])
        self.assertFalse(value[name].is_deleted())

  def test_unknown_kind(self):
    with self.assertRaisesRegex(
        ValueError, "auto, copy or ppermute, got 'tcp'"
    ):
      link_lib.make_link(
          jax.devices()[0], jax.devices()[1], like=LIKE, kind="tcp"
      )


if __name__ == "__main__":
  absltest.main()
