"""What an agent does about coordination services, with a store in memory."""

import asyncio
import unittest

from absl.testing import absltest

from bamboo_jax.cluster.sessions import era_keys
from bamboo_jax.cluster.sessions import eras
from bamboo_jax.cluster.sessions import services as services_lib
from bamboo_jax.cluster.store import etcd as etcd_lib


class Store:
  """As much of `etcd.Etcd` as is needed here."""

  def __init__(self):
    self.content = {}

  def get(self, key):
    value = self.content.get(key)
    return None if value is None else etcd_lib.Entry(key, value, 1)

  def get_all(self, prefix):
    return [self.get(k) for k in sorted(self.content) if k.startswith(prefix)]

  def put(self, key, value):
    self.content[key] = value

  def swap(self, key, value, *, revision):
    self.content.setdefault(key, value)
    return self.content[key] == value


class ServicesTest(unittest.IsolatedAsyncioTestCase):

  async def asyncSetUp(self):
    self.store = Store()
    self.keys = era_keys.EraKeys(self.store, "run")
    self.told = []
    self.changed = asyncio.Event()
    self.accepted = asyncio.Queue()
    self.servers = []

  async def asyncTearDown(self):
    for server in self.servers:
      server.close()

  def make_services(self, fixed=None):
    return services_lib.Services(
        self.store,
        "run",
        fixed=fixed,
        tell=self.told.append,
        on_change=self.changed.set,
    )

  async def publish(self, number, *, nodes=(), num_slots=3):
    """Makes an era with a service of its own."""
    accept = lambda *streams: self.accepted.put_nowait(streams)
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    self.servers.append(server)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    era = eras.begin_era(number, address, num_slots=num_slots, nodes=nodes)
    self.assertTrue(self.keys.publish(era))
    return era

  async def connect(self, number):
    """Connects as the worker to an era; returns both ends."""
    era = next(m["era"] for m in self.told if m["era"]["number"] == number)
    host, port = etcd_lib.parse_endpoint(era["address"])
    worker = await asyncio.open_connection(host, port)
    return worker, await self.accepted.get()

  async def test_the_worker_is_told_of_all_eras_in_order(self):
    services = self.make_services()
    await self.publish(0)
    await services.wait_slot(1)
    await self.publish(1, nodes=[1])
    await services.look()
    self.assertEqual(self.told, [])  # It might take the wrong one.
    services.tell_newest()
    await self.publish(2, nodes=[1])
    await self.publish(3, nodes=[1])
    await services.find(3)
    self.assertEqual([m["era"]["number"] for m in self.told], [1, 2, 3])
    services.close()

  async def test_asks_for_an_era_with_a_slot(self):
    services = self.make_services()
    await self.publish(0, num_slots=3)
    waiting = asyncio.create_task(services.wait_slot(2))
    while self.keys.wanted() != 1:
      await asyncio.sleep(0)
    await self.publish(1, nodes=[0, 2])
    await waiting
    self.assertEqual(services.newest, 1)
    services.close()

  async def test_comes_too_late(self):
    services = self.make_services()
    await self.publish(0)
    self.assertFalse(await services.is_late(1))
    await self.publish(1, nodes=[0, 4])
    self.assertTrue(await services.is_late(1))
    with self.assertRaisesRegex(ValueError, "Node 1 came when era 1 began"):
      await services.wait_slot(1)
    services.close()

  async def test_one_service_and_no_more(self):
    services = self.make_services(fixed=eras.Era(0, "127.0.0.1:1", 3))
    with self.assertRaisesRegex(ValueError, "no slot for node 2, dead nodes"):
      await services.wait_slot(2)
    services.close()

  async def test_needs_another_once_the_service_is_dead(self):
    services = self.make_services()
    await self.publish(0)
    await services.look()
    services.tell_newest()
    self.assertEqual(services.needed(0), 0)
    (_, writer), (_, sink) = await self.connect(0)
    self.changed.clear()
    sink.close()
    await self.changed.wait()
    self.assertIsNone(services.needed(0))
    await self.publish(1, nodes=[0])
    await services.look()
    self.assertEqual(services.needed(0), 1)
    self.assertEqual(services.needed(1), 1)
    writer.close()
    services.close()

  async def test_notes_where_the_worker_is(self):
    services = self.make_services()
    await self.publish(0)
    await self.publish(1, nodes=[0])
    await services.look()
    await services.use("n0", 1)
    self.assertEqual(services.used, 1)
    self.assertEqual(self.keys.used(["n0", "n1"]), {1})
    self.assertEqual(self.keys.used(["n1"]), set())
    services.close()


if __name__ == "__main__":
  absltest.main()
