"""Links carry arrays in order, within a process and between processes."""

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime.wire import links as links_lib
from bamboo_jax.schedule import channel as channel_lib
from tests.runtime.wire import transport_test

LIKE = {
    "a": jax.ShapeDtypeStruct((2, 3), np.float32),
    "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16),
    "c": jax.ShapeDtypeStruct((), np.float32),
    "d": [jax.ShapeDtypeStruct((2, 1, 2), np.float32)],
    "e": jax.ShapeDtypeStruct((), np.int32),
}
CHANNEL = channel_lib.Channel("activation", (0, 1), (3,))


def make_value(device, first):
  def numbers(a):
    return (first + jnp.arange(a.size)).astype(a.dtype).reshape(a.shape)

  return jax.device_put(jax.tree.map(numbers, LIKE), device)


class LinksTest(parameterized.TestCase):

  def make(self, kind, destination):
    """Returns both ends of the links."""
    find_place = lambda node: destination
    if kind == "local":
      return [links_lib.Links(None, find_place)] * 2
    transports = transport_test.make_transports(self, 2)
    return [links_lib.Links(transport, find_place) for transport in transports]

  @parameterized.parameters(("local", 1), ("local", 0), ("socket", 1))
  def test_values_arrive_in_order(self, kind, destination):
    source, destination = jax.devices()[0], jax.devices()[destination]
    here, there = self.make(kind, destination)
    self.assertEqual(there.find_remote(CHANNEL) is None, kind == "local")
    sent = [make_value(source, i) for i in (1, 2, 3)]
    for value in sent:
      here.send(CHANNEL, value)
    for value in sent:
      got = there.receive(CHANNEL, LIKE)
      chex.assert_trees_all_equal_shapes_and_dtypes(got, value)
      chex.assert_trees_all_equal(got, value)  # What was sent is still there.
      self.assertEqual({d for a in jax.tree.leaves(got) for d in a.devices()}, {destination})

  def test_arrays_on_a_mesh(self):
    specs = (("data", "tensor"), ("tensor",), ("data",), ())
    find_target = lambda place, _: [
        jax.sharding.NamedSharding(place, jax.sharding.PartitionSpec(*spec)) for spec in specs
    ]
    meshes = [
        jax.sharding.Mesh(np.array(devices).reshape(2, 2), ("data", "tensor"))
        for devices in (jax.devices()[:4], jax.devices()[4:8])
    ]
    values = [np.arange(8.0, dtype=np.float32).reshape(4, 2) + i for i in range(4)]
    for kind in ("local", "socket"):
      here, there = self.make(kind, meshes[1])
      here.send(CHANNEL, jax.device_put(values, find_target(meshes[0], values)), find_target)
      found = there.receive(CHANNEL, values, find_target)
      for got, value, to in zip(found, values, find_target(meshes[1], values), strict=True):
        np.testing.assert_array_equal(got, value)
        self.assertEqual(got.sharding, to)

  def test_dropped_values_are_not_received(self):
    here, there = self.make("local", jax.devices()[0])
    first, second, want = (make_value(jax.devices()[0], i) for i in range(3))
    here.send(CHANNEL, first)
    here.send(CHANNEL, second)
    here.drain()
    here.send(CHANNEL, want)
    chex.assert_trees_all_equal(there.receive(CHANNEL, LIKE), want)

  def test_a_node_sends_to_itself_within_its_process(self):
    links = links_lib.Links(object(), None)
    self.assertIsNone(links.find_remote(channel_lib.Channel("activation", (1, 1), (0,))))
