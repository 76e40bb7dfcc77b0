"""Agents find each other, and strangers find nobody."""

import asyncio
import contextlib
import logging as std_logging

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.cluster import frames
from bamboo_jax.cluster import peers as peers_lib
from bamboo_jax.cluster import views


class Agent:
  """Notes what happens to it."""

  def __init__(self, number, *, run="run", secret=b"secret"):
    self.heard = asyncio.Queue()
    self.peers = peers_lib.Peers(
        run=run,
        secret=secret,
        on_hello=lambda m: self.heard.put_nowait(("hello", m.number)),
        on_connected=lambda i: self.heard.put_nowait(("connected", i)),
        on_message=lambda i, m: self.heard.put_nowait((i, m)),
        on_lost=lambda i, reason: self.heard.put_nowait(("lost", i)),
    )
    self.number = number

  async def listen(self):
    port = await self.peers.listen("127.0.0.1")
    name = f"n{self.number}"
    self.peers.me = views.Member(
        self.number, name, "a", f"life {self.number}", "127.0.0.1", port
    )
    return self


class PeersTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(self.assertNoLogs(std_logging.getLogger("asyncio")))

  def run_agents(self, scenario, **second):
    async def run():
      a, b = await Agent(0).listen(), await Agent(1, **second).listen()
      try:
        await asyncio.wait_for(scenario(a, b), 20)
      finally:
        await a.peers.close()
        await b.peers.close()

    asyncio.run(run())

  def test_messages_and_the_end(self):
    async def scenario(a, b):
      a.peers.dial(b.peers.me)
      a.peers.dial(b.peers.me)
      self.assertEqual(await a.heard.get(), ("connected", "life 1"))
      self.assertEqual(await b.heard.get(), ("hello", 0))
      a.peers.send("life 1", {"kind": "x"})
      a.peers.send_all({"kind": "y"})
      self.assertEqual(await b.heard.get(), ("life 0", {"kind": "x"}))
      self.assertEqual(await b.heard.get(), ("life 0", {"kind": "y"}))
      a.peers.forget("life 1")
      self.assertEqual(await b.heard.get(), ("lost", "life 0"))

    self.run_agents(scenario)

  @parameterized.parameters({"run": "other"}, {"secret": b"other"})
  def test_who_does_not_belong_here(self, **second):
    async def scenario(a, b):
      with self.assertLogs("absl", "WARNING"):
        b.peers.dial(a.peers.me)
        self.assertEqual(await b.heard.get(), ("connected", "life 0"))
        self.assertEqual(await b.heard.get(), ("lost", "life 0"))
      self.assertTrue(a.heard.empty())

    self.run_agents(scenario, **second)

  @parameterized.parameters(
      b"GET / HTTP/1.1\r\n\r\n",
      b"\0\0\0\2[]",
      frames.encode({"run": "run"}),
      frames.encode({"run": "run", "answer": 3, "member": {}}),
      b"",
  )
  def test_garbage(self, data):
    async def scenario(a, b):
      me = a.peers.me
      with self.assertLogs("absl", "WARNING"):
        reader, writer = await asyncio.open_connection(me.host, me.port)
        writer.write(data)
        writer.write_eof()
        await reader.read()
        writer.close()
      self.assertTrue(a.heard.empty())
      b.peers.dial(me)  # It still answers.
      self.assertEqual(await a.heard.get(), ("hello", 1))

    self.run_agents(scenario)

  def test_many_strangers_leave_nothing_behind(self):
    said = [
        b"\xff\xff\xff\xff" + bytes(1 << 16),  # A frame of 4 GiB begins.
        b"\0\1\0\0" + bytes(1 << 15),  # Half a hello.
        bytes(range(256)) * 256,
    ]

    async def scenario(a, b):
      num_tasks = len(asyncio.all_tasks())
      with self.assertLogs("absl", "WARNING") as logs:
        for data in said * 20:
          reader, writer = await asyncio.open_connection(
              a.peers.me.host, a.peers.me.port
          )
          writer.write(data)
          writer.close()
          with contextlib.suppress(OSError):
            await writer.wait_closed()
        while len(asyncio.all_tasks()) > num_tasks:
          await asyncio.sleep(0)
      self.assertLen(logs.records, 3 * 20)
      self.assertTrue(a.heard.empty())

    self.run_agents(scenario)

  def test_what_is_said_before_there_is_a_connection(self):
    async def scenario(a, b):
      a.peers.send("life 1", {"kind": "to nobody"})
      a.peers.dial(b.peers.me)
      a.peers.send("life 1", {"kind": "x"})
      a.peers.send("life 1", {"kind": "y"})
      said = [await b.heard.get() for _ in range(3)]
      self.assertEqual(said[0], ("hello", 0))
      self.assertEqual([m["kind"] for _, m in said[1:]], ["x", "y"])

    self.run_agents(scenario)

  def test_nobody_there(self):
    async def scenario(a, b):
      await b.peers.close()
      a.peers.dial(b.peers.me)
      self.assertEqual(await a.heard.get(), ("lost", "life 1"))

    self.run_agents(scenario)


if __name__ == "__main__":
  absltest.main()
