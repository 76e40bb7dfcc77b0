"""Links carry arrays in order, within a process and between processes."""

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime.wire import endpoints, links as links_lib, transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib

LIKE = {
    "a": jax.ShapeDtypeStruct((2, 3), np.float32),
    "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16),
    "c": jax.ShapeDtypeStruct((), np.float32),
    "d": [jax.ShapeDtypeStruct((2, 1, 2), np.float32)],
    "e": jax.ShapeDtypeStruct((), np.int32),
}


def make_value(device, first):
  def numbers(a):
    return (first + jnp.arange(a.size)).astype(a.dtype).reshape(a.shape)

  return jax.device_put(jax.tree.map(numbers, LIKE), device)


class LinkTest(parameterized.TestCase):

  def make(self, kind, destination, like=LIKE):
    """Returns both ends of a link."""
    if kind == "local":
      link = links_lib.LocalLink(destination)
      return link, link
    transports = [
        transport_lib.Transport(n, run="r", endpoint=endpoints.UnixEndpoint()) for n in range(2)
    ]
    ends = []
    for transport in transports:
      self.addCleanup(transport.close)
      addresses = {n: t.address for n, t in enumerate(transports)}
      transport.set_addresses(addresses)
      transport.begin(1)
      channel = channel_lib.Channel("activation", (0, 1), (3,))
      ends.append(links_lib.SocketLink(transport, channel, like=like, to=destination))
    return ends

  @parameterized.parameters(("local", 1), ("local", 0), ("socket", 1))
  def test_values_arrive_in_order(self, kind, destination):
    source, destination = jax.devices()[0], jax.devices()[destination]
    here, there = self.make(kind, destination)
    sent = [make_value(source, i) for i in (1, 2, 3)]
    for value in sent:
      here.send(value)
    for value in sent:
      got = there.receive()
      chex.assert_trees_all_equal_structs(got, value)
      leaves = zip(jax.tree.leaves(got), jax.tree.leaves(value), strict=True)
      for a, b in leaves:
        self.assertEqual(a.devices(), {destination})
        self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
        np.testing.assert_array_equal(a, b)
        self.assertFalse(b.is_deleted())

  def test_arrays_on_a_mesh(self):
    specs = (("data", "tensor"), ("tensor",), ("data",), ())
    like = [jax.ShapeDtypeStruct((4, 2), np.float32)] * len(specs)
    ends = []
    for devices in (jax.devices()[:4], jax.devices()[4:8]):
      mesh = jax.sharding.Mesh(np.array(devices).reshape(2, 2), ("data", "tensor"))
      place = lambda spec, mesh=mesh: jax.sharding.NamedSharding(
          mesh, jax.sharding.PartitionSpec(*spec)
      )
      ends.append([place(spec) for spec in specs])
    here, there = self.make("socket", ends[1], like)
    values = [np.arange(8.0, dtype=np.float32).reshape(4, 2) + i for i in range(4)]
    here.send(jax.device_put(values, ends[0]))
    for got, value, to in zip(there.receive(), values, ends[1], strict=True):
      np.testing.assert_array_equal(got, value)
      self.assertEqual(got.sharding, to)

  def test_dropped_values_are_not_received(self):
    here, there = self.make("local", jax.devices()[0])
    for first in (1, 2):
      here.send(make_value(jax.devices()[0], first))
    here.drop()
    here.send(make_value(jax.devices()[0], 3))
    np.testing.assert_array_equal(there.receive()["a"], make_value(jax.devices()[0], 3)["a"])
