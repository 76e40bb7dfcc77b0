"""Agents with sockets, a store and worker processes that compute nothing."""

import asyncio
import os
import pathlib
import signal
import sys
import tempfile
import threading
import unittest
from unittest import mock

from bamboo_jax import config
from bamboo_jax.cluster.agent import agent as agent_lib, events as events_lib, peers as peers_lib
from bamboo_jax.cluster.store import etcd as etcd_lib, private_etcd, registry as registry_lib
from bamboo_jax.net import identity as identity_lib
from tests.cluster.agent import given

# Says what a worker must, and prints the members of each view it works in.
_WORKER = """
import itertools, signal, socket, sys, threading, time
from bamboo_jax.cluster import frames

number, sock = int(sys.argv[2]), socket.socket(fileno=int(sys.argv[5]))
decoder, views = frames.Decoder(), {}
say = lambda **message: sock.sendall(frames.encode(message))
assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN  # Its agent decides.

def beat():
  for count in itertools.count():
    say(kind="WorkerBeat", progress=count, is_waiting=False, stall=None)
    time.sleep(0.1)

threading.Thread(target=beat, daemon=True).start()
say(kind="WorkerReady")
while data := sock.recv(1 << 16):
  for message in decoder.feed(data):
    match message["kind"]:
      case "NewView":
        view = views[message["view"]["number"]] = message["view"]
        if number in [m["number"] for m in view["members"]]:
          say(kind="Post", view=view["number"], key="begun", value=sys.argv[1])
      case "Gathered":
        say(kind="Adopt", view=message["view"])
        say(kind="Report", facts={"steps": message["view"]})
        print(message["view"], *message["values"].values(), flush=True)
"""


def issue(role, name):
  return identity_lib.issue(b"", run="run", role=role, name=name)


class AgentTest(unittest.IsolatedAsyncioTestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    try:
      self.etcd = private_etcd.PrivateEtcd(self.folder / "etcd", secret=b"s")
    except OSError as error:
      self.skipTest(str(error))
    self.addCleanup(self.etcd.process.wait)
    self.addCleanup(self.etcd.process.kill)
    self.addCleanup(self.etcd.client.close)
    self.etcd.wait_ready()
    self.store = self.etcd.client

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
    self.agents[name] = agent_lib.Agent(self.store, options, issue("agent", options.name))
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

  async def test_workers_die_and_come(self):
    os.kill(self.agents["n0"]._worker._process.pid, signal.SIGKILL)
    reason = await self.end_of("n0")
    self.assertEqual(reason, "its worker was killed by SIGKILL")
    await self.wait(2, "n1 n2")
    self.start("n3")
    await self.wait(3, "n1 n2 n3")
    registry = registry_lib.Registry(self.store, "run")
    reasons = [v.reason for v in registry.read_views(1)]
    self.assertEqual(reasons, ["n0 left: its worker was killed by SIGKILL", "n3 joined"])
    self.assertCountEqual([m.name for m in registry.members()], ["n1", "n2", "n3"])
    while registry.read_status().get("steps") != 3:
      await asyncio.sleep(0.1)

  async def test_another_life_takes_the_store_as_it_is(self):
    answer = {"header": {"cluster_id": "1", "revision": "9"}}
    store = etcd_lib.Etcd("h:1", transport=lambda *_: (200, answer))
    store.get("/some/key")
    self.assertEqual(store.revision, 9)
    agent_lib.Agent(store, given.make_options("n9"), issue("agent", "n9"))
    self.assertEqual(store.revision, 0)

  async def test_the_folder_does_not_wait_for_the_store(self):
    options = given.make_options("n9", workdir=str(self.folder))
    agent = agent_lib.Agent(self.store, options, issue("agent", "n9"))
    over = threading.Event()
    wait = events_lib.Store(lambda _: over.wait(60))
    calls = [asyncio.create_task(agent._do(wait)) for _ in range(40)]
    await asyncio.sleep(0)
    try:
      async with asyncio.timeout(10):
        claim, _ = await agent._do(events_lib.CallFence("read"))
    finally:
      over.set()
      await asyncio.gather(*calls)
      agent._calls.shutdown()
    self.assertEqual(claim.stamp, self.agents["n0"]._state.stamp)

  async def test_a_folder_that_hangs_holds_up_nothing_else(self):
    options = given.make_options("n9", workdir=str(self.folder))
    agent = agent_lib.Agent(self.store, options, issue("agent", "n9"))
    over = threading.Event()
    with mock.patch.object(agent._fence, "beat", lambda _: over.wait(60)):
      beat = events_lib.CallFence("beat", ("run",))
      calls = [asyncio.create_task(agent._do(beat)) for _ in range(40)]
      await asyncio.sleep(0)
      try:
        async with asyncio.timeout(10):
          dial = peers_lib._connect("localhost", self.port(), 1.0)
          (await dial).close()
          await agent._do(events_lib.Store(lambda _: None))
          await agent._do(events_lib.CallFence("read"))
        calls[0].cancel()  # The flow has ended; its call goes on.
      finally:
        over.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        agent._calls.shutdown()
    self.assertIsInstance(done[0], asyncio.CancelledError)
    self.assertEqual(done[1:], [True] * 39)

  def port(self):
    """Returns one that somebody listens on."""
    return int(self.etcd.endpoint.rpartition(":")[2])

  async def test_a_stopped_worker_is_killed(self):
    os.kill(self.agents["n1"]._worker._process.pid, signal.SIGSTOP)
    reason = await self.end_of("n1")
    self.assertIn("its worker was stopped for", reason)
    await self.wait(2, "n0 n2")

  async def test_an_agent_is_told_to_end_at_once(self):
    self.lives["n2"].cancel()
    await self.wait(2, "n0 n1")

  async def test_an_agent_of_another_run_is_refused(self):
    options = given.make_options("n4", config={"seed": 1}, workdir=str(self.folder))
    agent = agent_lib.Agent(self.store, options, issue("agent", options.name))
    with self.assertRaisesRegex(ValueError, "seed is 0 there and 1 here"):
      await agent.run()

  async def test_a_release_of_the_store_with_faults_is_logged(self):
    find = mock.patch.object(etcd_lib, "find_fault", return_value="it errs")
    with find, self.assertLogs("absl", "INFO") as logs:
      self.start("n3")
      await self.wait(2, "n0 n1 n2 n3")
    self.assertIn("it errs", "".join(logs.output))

  async def test_a_notice(self):
    self.assertTrue(self.agents["n1"].give_notice("SIGTERM"))
    self.assertFalse(self.agents["n1"].give_notice("SIGTERM"))
    await self.wait(2, "n0 n1 n2")
    registry = registry_lib.Registry(self.store, "run")
    async with asyncio.timeout(60):  # It is written after it is told.
      while (view := registry.read_view()).number < 2:
        await asyncio.sleep(0.01)
    self.assertEqual([m.name for m in view.members if m.number in view.leaving], ["n1"])
