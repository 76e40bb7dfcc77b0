"""An agent under test, in virtual time, beside others that do what a test says."""

import asyncio
import contextlib
import dataclasses
import math

from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import messages, records as records_lib, views
from bamboo_jax.cluster.agent import agent as agent_lib, mesh as mesh_lib
from tests import members
from tests.explorer import loop as loop_lib, place as place_lib, worker as worker_lib

make_options = worker_lib.make_options


def suspects(*whom, count=1, is_certain=False):
  """What an agent says of others."""
  found = (messages.Suspect(f"life {n}", "silent", is_certain) for n in whom)
  return messages.Say(suspects=tuple(found), count=count)


class Mesh:
  """Connections of one agent; `refusing` numbers refuse, `silent` ones give no answer."""

  def __init__(self):
    self.sent, self.dialed, self.forgotten = [], [], []
    self.refusing, self.silent, self.closed, self.accepted = set(), set(), {}, {}

  @contextlib.asynccontextmanager
  async def connect(self, member, on_accepted):
    self.dialed.append(member.number)
    self.accepted[member.number] = on_accepted
    await asyncio.sleep(0.001)
    if member.number in self.refusing:
      raise mesh_lib.GoneError("refused")
    if member.number in self.silent:
      raise OSError("no answer")
    self.closed[member.number] = asyncio.get_running_loop().create_future()
    yield self.closed[member.number]

  def send(self, message, to=None):
    self.sent += [(message, who) for who in ((None,) if to is None else to)]

  async def listen(self, host, *, hello, on_came, on_message):
    self.hello = hello
    return 1

  def forget(self, incarnation):
    self.forgotten.append(incarnation)

  async def close(self):
    pass


class Worker:
  """The worker of one agent."""

  def __init__(self, loop):
    self.sent, self.is_killed, self.stopped, self.busy = [], False, False, False
    self.exit = loop.create_future()
    self.send = self.sent.append
    self.is_stopped = lambda: self.stopped
    self.is_busy = lambda: self.busy
    self.reap_orphans = lambda: None

  async def start(self, command, *, log, on_message):
    self.command = command

  async def wait(self):
    return await self.exit

  def kill(self):
    self.is_killed = True

  kill_hanging = kill

  async def close(self):
    pass


class Place:
  """Records in memory; calls fail while there are `errors`."""

  def __init__(self):
    self.errors, self.calls = [], []
    self._memory = place_lib.Memory()
    self.values = self._memory.values

  def __getattr__(self, method):
    def call(key, *content):
      self.calls.append((method, key))
      if self.errors:
        raise self.errors.pop(0)
      return getattr(self._memory, method)(key, *content)

    return call


class AgentCase(parameterized.TestCase):
  """One agent, `agent`, beside others that are numbers."""

  def begin(self, *, me=0, numbers=(0, 1, 2), hosts="h", name=None, view=None, **changes):
    """An agent that is a member of view 1, connected to the others, with nothing to do.

    `hosts` are those of the members, assigned in turn.
    """
    name = name or f"n{me}"
    self.make(name=name, me=me, **changes)
    roster = self.agent.roster
    roster.me = members.member(me, host=hosts[me % len(hosts)])
    roster.known[f"life {me}"] = roster.me
    found = [members.member(n, host=hosts[n % len(hosts)]) for n in numbers]
    view = view or dataclasses.replace(members.view(1), members=tuple(found))
    roster.adopt(view)
    self.records.make(f"views/{view.number}", json_lib.to_plain(view))
    self.agent.stamp, self.agent.has_worker = "run", True
    self.agent._epoch = roster.origin = 0
    others = [m for m in found if m.number != me]
    self.tell(self.agent._dial, others)
    for member in others:
      roster.watch.add(member.incarnation, 0.0)
    self.run_for(0.01)
    self.tell(self.agent._show_worker)
    self.worker.sent.clear()
    self.mesh.sent.clear()
    self.mesh.dialed.clear()

  def make(self, *, name="n0", me=0, **changes):
    """An agent that has not joined; its step `_join` is left to the test."""
    if not hasattr(self, "place"):
      self.place = Place()
      self.records = records_lib.Records("there", b"key")
      self.records._place = self.place
    self.logged = []
    self.clock = loop_lib.Clock()
    self.loop = loop_lib.Process(self.clock)
    self.addCleanup(self.loop.close)
    self.mesh, self.worker = Mesh(), Worker(self.loop)
    self.agent = agent_lib.Agent(
        make_options(name, **changes),
        incarnation=f"life {me}",
        judge=self.ask,
        mesh=self.mesh,
        worker=self.worker,
        log=lambda level, text, *args: self.logged.append(text % args),
    )

    async def _join():
      """Waits for the test."""

    self.join, self.agent._join = self.agent._join, _join
    self.life = self.loop.create_task(self.agent.run())
    self.clock.run_for(0.0)

  @property
  def now(self):
    return self.clock.now

  async def ask(self, function, *args):
    await asyncio.sleep(0.0001)
    return function(self.records, *args)

  def tell(self, call, *args):
    """Something happens to the agent; its timers wait for `run_for`."""
    self.loop.tell(call, *args)
    self.clock.run(-math.inf)

  def hear(self, number, message):
    self.tell(self.agent._hear, f"life {number}", message)

  def hear_worker(self, message):
    self.tell(self.agent._hear_worker, message)

  def run_for(self, secs, *, beats=()):
    """Time passes, in which some others, and the worker, give signs of life."""
    end = self.now + secs
    while beats and self.now < end - 1e-9:
      self.agent.roster.watch.note_worker(self.now)
      for number in beats:
        self.hear(number, messages.Beat())
      self.clock.run(min(end, self.now + 0.1))
    self.clock.run(end)

  def do(self, coroutine, *, secs=1000.0):
    """Returns the result of a step."""
    task = self.loop.create_task(coroutine)
    self.clock.run(secs, until=task.done)
    return task.result()

  def make_view(self, view):
    self.records.make(f"views/{view.number}", json_lib.to_plain(view))
    return view

  def find_view(self, number):
    found = self.records.find(f"views/{number}")
    return found and json_lib.from_plain(views.View, found)

  @property
  def view(self):
    return self.agent.roster.view

  @property
  def ended(self):
    """Why the agent has ended; None if it has not."""
    end = self.agent._end
    if not end.done():
      return None
    return end.exception() or end.result()
