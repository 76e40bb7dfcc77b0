"""Links carry arrays in order, within a process and between processes."""

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime import places
from bamboo_jax.runtime.wire import links as links_lib
from bamboo_jax.schedule import channel as channel_lib
from tests.runtime.wire import transport_test

LIKE = {
    "a": jax.ShapeDtypeStruct((2, 4), np.float32),
    "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16),
    "c": jax.ShapeDtypeStruct((), np.float32),
    "d": [jax.ShapeDtypeStruct((2, 2, 1), np.float32)],
    "e": jax.ShapeDtypeStruct((), np.int32),
}
AXES = ("data", "tensor")
CHANNEL = channel_lib.Channel("activation", (0, 1), (3,))


def find_place(*numbers):
  """Returns one device, or a mesh of four."""
  devices = [jax.devices()[number] for number in numbers]
  return devices[0] if len(numbers) == 1 else jax.sharding.Mesh(np.reshape(devices, (2, 2)), AXES)


def find_target(place, value):
  if isinstance(place, jax.Device):
    return places.of_data(place, value)
  spec = lambda a: jax.sharding.PartitionSpec(*AXES[: a.ndim])
  return jax.tree.map(lambda a: jax.sharding.NamedSharding(place, spec(a)), value)


def make_value(place, first):
  numbers = lambda a: (first + jnp.arange(a.size)).astype(a.dtype).reshape(a.shape)
  value = jax.tree.map(numbers, LIKE)
  return jax.device_put(value, find_target(place, value))


class LinksTest(parameterized.TestCase):

  def make(self, kind, destination):
    """Returns both ends of the links."""
    find = lambda node: destination
    if kind == "local":
      return [links_lib.Links(None, find)] * 2
    transports = transport_test.make_transports(self, 2)
    return [links_lib.Links(transport, find) for transport in transports]

  @parameterized.parameters(
      ("local", (0,), (1,)),
      ("local", (0,), (0,)),
      ("socket", (0,), (1,)),
      ("local", range(4), range(4, 8)),
      ("socket", range(4), range(4, 8)),
  )
  def test_values_arrive_in_order(self, kind, source, destination):
    source, destination = find_place(*source), find_place(*destination)
    here, there = self.make(kind, destination)
    self.assertEqual(there.find_remote(CHANNEL) is None, kind == "local")
    sent = [make_value(source, i) for i in (1, 2, 3)]
    for value in sent:
      here.send(CHANNEL, value, find_target)
    for value in sent:
      got = there.receive(CHANNEL, LIKE, find_target)
      chex.assert_trees_all_equal_shapes_and_dtypes(got, value)
      chex.assert_trees_all_equal(got, value)  # What was sent is still there.
      where = find_target(destination, value)
      self.assertEqual(jax.tree.map(lambda a: a.sharding, got), where)

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
