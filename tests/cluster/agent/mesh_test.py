"""Agents find each other, and strangers find nobody."""

import asyncio
import contextlib
import dataclasses
import errno
import gc
import logging as std_logging
import socket
import struct
import unittest
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.cluster import messages, views
from bamboo_jax.cluster.agent import mesh as mesh_lib
from bamboo_jax.net import identity as identity_lib

_THIN_LINEAR_TIMEOUTS = 16


class Agent:
  """Its connections, and what happens to them."""

  def __init__(
      self,
      number,
      *,
      run="run",
      secret=b"secret",
      role="agent",
      name=None,
      stamp="life 0",
      host="127.0.0.1",
  ):
    self.host = host
    self.stamp = stamp
    self.events = asyncio.Queue()
    self.identity = identity_lib.issue(secret, run=run, role=role, name=name or f"n{number}")
    self.mesh = mesh_lib.Mesh(self.identity, ack_secs=2.5)
    self.number = number
    self.dials = []

  async def listen(self):
    name, life = f"n{self.number}", f"life {self.number}"
    say = self.events.put_nowait
    port = await self.mesh.listen(
        self.host,
        hello=lambda: messages.Hello(self.me, self.stamp),
        on_came=lambda member: say(("came", member)),
        on_message=lambda who, message: say(("said", who, message)),
    )
    self.me = views.Member(self.number, name, "a", life, self.host, port)
    return self

  def dial(self, other):
    self.dials.append(asyncio.create_task(self.connect(getattr(other, "me", other))))

  async def connect(self, member):
    who, say = member.incarnation, self.events.put_nowait
    try:
      async with self.mesh.connect(member, lambda: say(("accepted", who))) as closed:
        say(("reached", who))
        reason = await closed
      say(("closed", who, reason))
    except OSError as error:
      say(("refused" if isinstance(error, mesh_lib.GoneError) else "failed", who, str(error)))

  async def close(self):
    await self.mesh.close()
    for dial in self.dials:
      dial.cancel()
    await asyncio.gather(*self.dials, return_exceptions=True)

  async def heard(self, count=1):
    return [await asyncio.wait_for(self.events.get(), 20) for _ in range(count)]


class MeshTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(self.assertNoLogs(std_logging.getLogger("asyncio")))

  async def asyncSetUp(self):
    asyncio.get_running_loop().set_debug(False)  # It logs how long each step takes.

  async def begin(self, **second):
    """Returns two agents that listen."""
    self.addCleanup(gc.collect)  # Warns of what was not closed.
    agents = [await Agent(0).listen(), await Agent(1, **second).listen()]
    for agent in agents:
      self.addAsyncCleanup(agent.close)
    return agents

  async def test_messages_and_the_end(self):
    a, b = await self.begin()
    a.dial(b)
    self.assertEqual(await a.heard(), [("reached", "life 1")])
    a.mesh.send(messages.Beat(2), ["life 2"])
    a.mesh.send(messages.Beat(3), ["life 1"])
    a.mesh.send(messages.Say(is_done=True))
    self.assertEqual(
        await b.heard(3),
        [
            ("came", a.me),
            *(("said", "life 0", m) for m in (messages.Beat(3), messages.Say(is_done=True))),
        ],
    )
    writer = a.mesh._writers["life 1"]
    (heard,) = b.mesh._heard["life 0"]
    used, listened = (end.get_extra_info("socket") for end in (writer, heard))
    tcp = lambda end, *option: end.getsockopt(socket.IPPROTO_TCP, *option)
    self.assertEqual(tcp(used, socket.TCP_USER_TIMEOUT), 2_500)  # What gets no answer.
    for end in (used, listened):
      self.assertBetween(tcp(end, socket.TCP_MAXSEG), 1000, 1200)
      self.assertTrue(tcp(end, _THIN_LINEAR_TIMEOUTS))
      self.assertEqual(tcp(end, socket.TCP_CONGESTION, 16).rstrip(b"\0"), b"reno")
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
      self.assertLess(tcp(listened, option), 100)
    # As it never writes.
    self.assertTrue(listened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    writer.transport.abort()
    (closed,) = await a.heard()
    self.assertEqual(closed[:2], ("closed", "life 1"))
    a.dial(b)  # Again.
    self.assertEqual(await a.heard(), [("reached", "life 1")])
    self.assertEqual(await b.heard(), [("came", a.me)])

  @parameterized.parameters("localhost", "::1", "127.0.0.9")
  async def test_hosts(self, host):
    a, b = await self.begin(host=host)
    with contextlib.ExitStack() as stack:
      if host != "localhost":  # Numbers, which take no thread to look up.
        refuse = mock.Mock(side_effect=AssertionError)
        stack.enter_context(mock.patch.object(asyncio, "to_thread", refuse))
      a.dial(b)
      self.assertEqual(await a.heard(), [("reached", "life 1")])

  @parameterized.parameters("10.255.255.1", "fd00::dead", "no.such.host.")
  async def test_a_host_of_others(self, host):
    a, _ = await self.begin()
    a.host = host
    problem = f"Cannot listen on '{host}': .* --host must be an address of "
    with self.assertRaisesRegex(OSError, problem):
      await a.listen()

  @parameterized.parameters(
      ({"run": "other"}, "it is spiffe://run/agent/n0, not spiffe://other/"),
      ({"secret": b"other"}, "certificate verify failed"),
      ({"role": "worker"}, "it was closed at once"),
      ({"name": "n2"}, "the connection was closed"),
  )
  async def test_who_does_not_belong_here(self, second, problem):
    a, b = await self.begin(**second)
    b.dial(a)
    *_, failed = await b.heard(2 if "name" in second else 1)
    self.assertIn(problem, failed[2])
    self.assertNotEqual(failed[0], "refused")
    self.assertTrue(a.events.empty())
    a.dial(b)
    (failed,) = await a.heard()
    self.assertIn(failed[0], ("failed", "refused"))
    self.assertTrue(b.events.empty())

  @parameterized.product(
      data=(
          b"GET / HTTP/1.1\r\n\r\n",
          b"\0\0\0\2[]",
          messages.encode({"kind": "Hello", "member": 3}),
          messages.encode(messages.Beat()),
          b"\xff\xff\xff\xff" + bytes(1 << 16),  # A frame of 4 GiB begins.
          b"",
      ),
      is_secure=(False, True),
  )
  async def test_a_stranger(self, data, is_secure):
    a, b = await self.begin()
    with self.assertLogs("absl", "WARNING"):
      ssl = b.identity.client if is_secure else None
      reader, writer = await asyncio.open_connection(a.me.host, a.me.port, ssl=ssl)
      if is_secure:
        await reader.read(1)
      writer.write(data)
      if not is_secure:
        writer.write_eof()
      with contextlib.suppress(ConnectionResetError):
        if data or not is_secure:
          await reader.read()
      writer.close()
      while a.mesh._tasks:
        await asyncio.sleep(0)
    self.assertTrue(a.events.empty())
    b.dial(a)  # It still answers.
    self.assertEqual(await a.heard(), [("came", b.me)])

  async def test_a_message_of_no_known_kind_ends_the_connection(self):
    a, b = await self.begin()
    a.dial(b)
    await a.heard()
    with self.assertLogs("absl", "WARNING") as logs:
      a.mesh._writers["life 1"].write(messages.encode({"kind": "x"}))
      (closed,) = await a.heard()
    self.assertEqual(closed[0], "closed")
    self.assertIn("Invalid value 'x' - at `$.kind`", logs.output[0])

  async def test_who_is_left_out_may_knock(self):
    a, b = await self.begin()
    a.dial(b)
    await a.heard()
    await b.heard()
    b.mesh.forget("life 0")
    (closed,) = await a.heard()
    self.assertEqual(closed[0], "closed")
    a.dial(b)
    _, closed = await a.heard(2)
    self.assertEqual(closed[0], "closed")
    self.assertTrue(b.events.empty())

  async def test_whom_it_dials_hangs_up(self):
    a, b = await self.begin()
    hang_up = lambda _, writer: writer.close()
    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with mock.patch.object(mesh_lib, "_BREAKS_SECS", 0.1):
      b.dial(dataclasses.replace(a.me, port=port))
      (lost,) = await b.heard()
    self.assertIn("reset", lost[2].lower())
    server.close()

  async def test_a_host_that_takes_connections_again(self):
    a, b = await self.begin()
    with socket.create_server(("127.0.0.1", 0)) as host:
      port = host.getsockname()[1]
    busy = dataclasses.replace(b.me, port=port)
    a.dial(busy)
    (failed,) = await a.heard()
    self.assertEqual(failed[0], "refused")
    with socket.create_server(("127.0.0.1", port)):  # No agent answers yet.
      a.dial(busy)
      self.assertEqual(await a.heard(), [("accepted", "life 1")])
      a.dial(b)  # Says so once.
      self.assertEqual(await a.heard(), [("reached", "life 1")])

  @parameterized.parameters(
      ({}, {"incarnation": "former life"}, "another agent has its address"),
      ({"stamp": "another life"}, {}, "of another run"),  # What is left of one before.
  )
  async def test_another_is_there(self, second, known, problem):
    a, b = await self.begin(**second)
    a.dial(dataclasses.replace(b.me, **known))
    with self.assertLogs("absl", "WARNING"):
      (failed,) = await a.heard()
      while b.mesh._tasks:
        await asyncio.sleep(0)
    self.assertEqual(failed[0], "refused")
    self.assertIn(problem, failed[2])
    self.assertTrue(b.events.empty())

  @parameterized.named_parameters(
      ("no_files_are_left_here", [OSError(errno.EMFILE, "Too many open files")] * 2, 5.0),
      # It says nothing of the agent, which is not suspected for that.
      ("it_is_reset_at_once", ["reset"] * 3, 5.0),
      ("a_link_that_is_whole_again_is_tried_soon", ["lost"], 5.0),
      ("no_answer", ["lost"] * 99, 0.2, ("failed", "life 1", "TimeoutError")),
  )
  async def test_what_happens_before(self, tries, most_secs, want=("reached", "life 1")):
    a, b = await self.begin()
    connect, tries = mesh_lib._connect, [*tries]
    host = self.enter_context(socket.create_server(("127.0.0.1", 0)))

    async def meet(name, port, ack_secs):
      trouble = tries.pop() if tries else ""
      if isinstance(trouble, OSError):
        raise trouble
      if trouble == "lost":
        await asyncio.sleep(3600)
      if trouble != "reset":
        return await connect(name, port, ack_secs)
      caller = await connect(*host.getsockname(), ack_secs)
      accepted, _ = host.accept()
      linger = struct.pack("ii", 1, 0)  # Closed by a reset.
      accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
      accepted.close()
      return caller

    with mock.patch.multiple(mesh_lib, _connect=meet, _TRY_SECS=0.05, _CONNECT_SECS=most_secs):
      a.dial(b)
      self.assertEqual(await a.heard(), [want])

  async def wait_closed(self, connection):
    with contextlib.suppress(ConnectionError):
      while await asyncio.get_running_loop().sock_recv(connection, 1):
        pass

  async def test_those_who_say_nothing_keep_nobody_out(self):
    a, b = await self.begin()
    silent = [
        self.enterContext(socket.create_connection((a.me.host, a.me.port)))
        for _ in range(mesh_lib._MAX_STRANGERS + 10)
    ]
    b.dial(a)
    self.assertEqual(await a.heard(), [("came", b.me)])
    for caller in silent:
      caller.setblocking(False)
    await asyncio.wait_for(self.wait_closed(silent[0]), 30)
    with self.assertRaises(BlockingIOError):  # The last ones may still speak.
      silent[-1].recv(1)

  async def test_the_slow_are_shut_out(self):
    a, _ = await self.begin()
    self.enterContext(mock.patch.object(mesh_lib, "HELLO_SECS", 0.05))
    with socket.create_connection((a.me.host, a.me.port)) as caller:
      caller.setblocking(False)
      caller.send(b"\x16")  # The first byte of a handshake.
      await asyncio.wait_for(self.wait_closed(caller), 30)
