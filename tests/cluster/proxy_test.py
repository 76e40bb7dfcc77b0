import asyncio
import unittest

from bamboo_jax.base import ports
from bamboo_jax.cluster import identity as identity_lib
from bamboo_jax.cluster import proxy as proxy_lib


def issue(role):
  return identity_lib.issue(b"", run="run", role=role, name="n0")


class ProxyTest(unittest.IsolatedAsyncioTestCase):

  async def asyncSetUp(self):
    self.accepted = asyncio.Queue()
    self.writers = []

    def accept(reader, writer):
      self.writers.append(writer)
      self.accepted.put_nowait((reader, writer))

    self.service = await asyncio.start_server(accept, "127.0.0.1", 0)
    inner_port = self.service.sockets[0].getsockname()[1]
    port = ports.free_port()
    self.gate = proxy_lib.Gate(
        "127.0.0.1",
        port,
        inner_port=inner_port,
        identity=issue("coordinator"),
    )
    self.proxy = proxy_lib.Proxy(f"127.0.0.1:{port}", issue("agent"))
    self.port = await self.proxy.listen()

  async def asyncTearDown(self):
    self.proxy.close()
    self.gate.close()
    self.service.close()
    for writer in self.writers:
      writer.close()

  async def connect(self):
    """Returns reader and writer of both ends."""
    worker = await asyncio.open_connection("127.0.0.1", self.port)
    return worker, await self.accepted.get()

  async def test_passes_on_both_ways(self):
    (reader, writer), (source, sink) = await self.connect()
    writer.write(b"a" * 100_000)
    self.assertEqual(await source.readexactly(100_000), b"a" * 100_000)
    sink.write(b"b")
    self.assertEqual(await reader.readexactly(1), b"b")
    self.assertFalse(self.proxy.lost.is_set())
    writer.close()

  async def test_service_dies_and_the_worker_does_not_notice(self):
    (reader, writer), (_, sink) = await self.connect()
    sink.close()
    await self.proxy.lost.wait()
    for _ in range(100):
      writer.write(b"a" * 10_000)
      await writer.drain()
    with self.assertRaises(TimeoutError):
      await asyncio.wait_for(reader.read(1), 0.01)
    writer.transport.abort()  # Some may still be on its way.

  async def test_worker_leaves(self):
    (_, writer), (source, _) = await self.connect()
    writer.close()
    self.assertEqual(await source.read(), b"")
    self.assertFalse(self.proxy.lost.is_set())

  async def test_cut(self):
    (reader, writer), (_, sink) = await self.connect()
    self.proxy.cut()
    sink.write(b"goodbye")
    sink.close()
    for _ in range(100):
      writer.write(b"a" * 10_000)
      await writer.drain()
    with self.assertRaises(TimeoutError):
      await asyncio.wait_for(reader.read(1), 0.01)
    self.assertFalse(self.proxy.lost.is_set())
    writer.transport.abort()

  async def test_no_service(self):
    self.gate.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
    self.assertEqual(await reader.read(), b"")
    await self.proxy.lost.wait()
    writer.close()
