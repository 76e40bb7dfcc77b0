"""Agents with sockets, records and worker processes that compute nothing."""

import asyncio
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from bamboo_jax import config
from bamboo_jax.cluster import judge, records as records_lib
from bamboo_jax.cluster.agent import agent as agent_lib, mesh as mesh_lib
from bamboo_jax.net import identity as identity_lib
from tests.cluster.agent import given

# Says what a worker must, and prints the members of each view it works in.
_WORKER = """
import itertools, signal, socket, sys, threading, time
from bamboo_jax.cluster import messages

number, sock = int(sys.argv[2]), socket.socket(fileno=int(sys.argv[5]))
say = lambda message: sock.sendall(messages.encode(message))
works_in = 0
assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN  # Its agent decides.

def beat():
  for count in itertools.count():
    say(messages.Beat(count, view=works_in))
    time.sleep(0.1)

threading.Thread(target=beat, daemon=True).start()
say(messages.Say(is_ready=True))
stream, posted = sock.makefile("rb"), set()
while head := stream.read(4):
  match messages.TO_WORKER.decode(stream.read(messages.find_length(head))):
    case messages.NewView(view):
      if number in view.numbers - posted:
        say(messages.Post(view.number, "begun", sys.argv[1]))
    case messages.Gathered(works_in, _, values):
      say(messages.Say(report={"steps": works_in}))
      print(works_in, *values.values(), flush=True)
"""


def issue(role, name):
  return identity_lib.issue(b"", run="run", role=role, name=name)


class AgentTest(unittest.IsolatedAsyncioTestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    self.records = records_lib.Records(self.folder, b"key")

  async def asyncSetUp(self):
    self.agents, self.lives = {}, {}
    for name in ("n0", "n1", "n2"):
      self.start(name)
    await self.wait(1, "n0 n1 n2")

  async def asyncTearDown(self):
    for life in self.lives.values():
      life.cancel()
    await asyncio.gather(*self.lives.values(), return_exceptions=True)

  def start(self, name):
    options = given.make_options(
        name,
        host="127.0.0.1",
        num_nodes=3,
        command=[sys.executable, "-c", _WORKER, name],
        workdir=str(self.folder),
        log=str(self.folder / f"{name}.log"),
        # A crowded machine is no reason to fail.
        limits=config.ClusterSection(
            heartbeat_secs=0.5, least_silence_secs=60, most_silence_secs=60
        ),
    )
    self.agents[name] = agent_lib.make_agent(self.records, options, issue("agent", options.name))
    self.lives[name] = asyncio.create_task(self.agents[name].run())

  def logged(self, name):
    """Returns the members of each view that a worker has worked in."""
    log = self.folder / f"{name}.log"
    lines = log.read_text().splitlines() if log.exists() else ()
    return {int(v): set(names) for v, *names in map(str.split, lines)}

  async def wait(self, view, names):
    """Waits until the workers of all live nodes work in a view."""
    async with asyncio.timeout(60):
      for name, life in self.lives.items():
        while not life.done() and self.logged(name).get(view) != set(names.split()):
          await asyncio.sleep(0.01)

  async def end_of(self, name):
    return await asyncio.wait_for(self.lives[name], 60)

  async def test_nodes_die_and_come_and_leave(self):
    os.kill(self.agents["n0"]._worker_process._process.pid, signal.SIGKILL)
    reason = await self.end_of("n0")
    self.assertEqual(reason, "its worker was killed by SIGKILL")
    await self.wait(2, "n1 n2")
    self.start("n3")
    await self.wait(3, "n1 n2 n3")
    reasons = [v["reason"] for v in self.records.follow("views", 1)]
    self.assertEqual(reasons, ["n0 left: its worker was killed by SIGKILL", "n3 joined"])
    names = lambda: sorted(m["member"]["name"] for m in self.records.marks("nodes").values())
    async with asyncio.timeout(60):
      while names() != ["n1", "n2", "n3"]:
        await asyncio.sleep(0.1)
      while (self.records.find("status/0") or {}).get("steps") != 3:
        await asyncio.sleep(0.1)
    self.assertAlmostEqual(self.records.find("status/0")["at_secs"], time.time(), delta=60)
    self.assertTrue(self.agents["n1"].give_notice("SIGTERM"))
    self.assertFalse(self.agents["n1"].give_notice("SIGTERM"))
    await self.wait(4, "n1 n2 n3")
    view = judge.newest_view(self.records)
    self.assertEqual([m.name for m in view.members if m.number in view.leaving], ["n1"])
    self.lives["n2"].cancel()  # It is told to end at once.
    await self.wait(5, "n1 n3")

  async def test_a_folder_that_hangs_holds_up_nothing_else(self):
    options = given.make_options("n9", workdir=str(self.folder))
    agent = agent_lib.make_agent(self.records, options, issue("agent", "n9"))
    over = threading.Event()
    with mock.patch.object(self.records, "drop", lambda _: over.wait(60)):
      drop = lambda records, key: records.drop(key)
      calls = [asyncio.ensure_future(agent._judge(drop, "nodes/x")) for _ in range(40)]
      await asyncio.sleep(0)
      try:
        async with asyncio.timeout(10):
          dial = mesh_lib._connect("127.0.0.1", self.agents["n0"].roster.own.port, 1.0)
          (await dial).close()
          self.assertEqual(await agent._judge(records_lib.Records.newest, "views", 0), 1)
        calls[0].cancel()  # The flow has ended; its call goes on.
        self.lives["n2"].cancel()  # Nor does it keep an agent from its end.
        await asyncio.wait([self.lives["n2"]], timeout=30)
        self.assertTrue(self.lives["n2"].done())
      finally:
        over.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
    self.assertIsInstance(done[0], asyncio.CancelledError)
    self.assertEqual(done[1:], [True] * 39)
