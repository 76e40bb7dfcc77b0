"""An agent under test, in virtual time, beside others that do what a test says."""

import asyncio
import contextlib
import dataclasses
import math

from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import judge, messages, records as records_lib, views
from bamboo_jax.cluster.agent import agent as agent_lib, mesh as mesh_lib
from tests import members
from tests.explorer import loop as loop_lib, place as place_lib, worker as worker_lib

make_options = worker_lib.make_options


def suspects(*whom, count=1, is_certain=False):
  """What an agent says of others."""
  found = (messages.Suspect(f"life {n}", "silent", is_certain) for n in whom)
  return messages.Say(suspects=tuple(found), count=count)


def _number(name):
  return int(name.strip("-n"))


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

  @property
  def told(self):
    """What it has said, newest last."""
    return [m for m, _ in self.mesh.sent if isinstance(m, messages.Say)]

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

  def play(self, course):
    """What happens, and what is found, step by step; see `courses_test`."""
    for step in course.split(" | "):
      with self.subTest(step=step):
        self._step(*step.split())

  def _step(self, who, *words):
    match who, *words:
      case "soon", other, *said:
        self.loop.call_soon(self.agent._hear, f"life {_number(other)}", self._message(*said))
      case "worker", "exits", code:
        self.tell(self.agent._start, self.agent._end_worker, int(code))
      case "worker", *said:
        self.hear_worker(self._message(*said))
      case "log", *view:
        self.make_view(self._read_view(*view))
      case "away", count:
        self.place.errors = [OSError("no folder.")] * int(count)
      case "asleep", secs:
        self.clock.now += float(secs)
      case "pass", secs, *others:
        self.run_for(float(secs), beats=[_number(n) for n in others])
      case "view", *view:
        self.assertEqual(self.view, self._read_view(*view))
      case "unmade", number:
        self.assertIsNone(self.find_view(int(number)))
      case "told", *said:
        for key, value in self._say(*said).items():
          found = getattr(self.told[-1], key)
          found = round(found, 6) if isinstance(found, float) else found
          self.assertEqual(f"{found}", f"{value}")
      case "silent",:
        self.assertEqual(self.told, [])
      case "warned", *text:
        self.assertEqual(self.logged, [" ".join(text)])
      case "lives",:
        self.assertIsNone(self.ended)
      case ("ends" | "restarts") as how, *why:
        self.assertEqual(self.ended, " ".join(why))
        self.assertEqual(self.agent.must_restart, how == "restarts")
      case "stopped",:
        self.worker.stopped = True
      case ("runs" | "killed") as what,:
        self.assertEqual(self.worker.is_killed, what == "killed")
      case ("mistake" | "accident") as what,:
        self.assertEqual(self.agent.is_mistake, what == "mistake")
      case "newcomer",:
        self.agent.roster.origin = None
      case "over",:
        self.make_view(views.over(self.view))
      case "another",:
        self.make_view(views.begin_run(self.view, "another"))
      case "complete",:
        judge.note_done(self.records, self.view)
      case "dialed", *others:
        self.assertEqual(self.mesh.dialed, [*map(_number, others)])
      case "suspects", *others:
        found = {f"life {_number(n)}" for n in others}
        self.assertEqual(self.agent.roster.unreachable.keys(), found)
      case "reads", number, *text:
        view = self.find_view(int(number))
        self.assertEqual(f"{view.text}, run {view.run}", " ".join(text))
      case "fails", kind, *why:
        self.assertEqual(f"{self.ended!r}", f"{kind}('{' '.join(why)}')")
      case other, ("refuses" | "hangs") as what, *_:
        if what == "refuses":
          self.mesh.refusing.add(_number(other))
        if (closed := self.mesh.closed.get(_number(other))) is not None:
          self.tell(closed.set_result, "closed")
      case other, "accepts":
        self.mesh.refusing.clear()
        self.mesh.silent.add(_number(other))
        self.tell(self.mesh.accepted[_number(other)])
      case other, "asks":
        asked = self.make_view(views.ask(self.view, "n9"))
        self.hear(_number(other), messages.NewView(asked))
      case other, "comes":
        self.tell(self.agent._welcome, members.member(_number(other)))
      case other, *said:
        self.hear(_number(other), self._message(*said))

  def _say(self, key, *text):
    """Returns the fields of what is said of a node."""
    return {f"is_{key}": True} if key in ("done", "ready") else {key: " ".join(text)}

  def _message(self, what, *rest):
    match what:
      case "certain":
        return suspects(*(_number(n) for n in rest), is_certain=True)
      case "finishes":
        return messages.Post(1, messages.FINISHED, None)
      case "beats":
        return messages.Beat(view=int(rest[0]))
      case "shows":
        return messages.NewView(self._read_view(*rest))
    return messages.Say(**self._say(what, *rest))

  def _read_view(self, number, *words):
    """Returns a view; without a reason it has that of the agent's view."""
    names, _, reason = " ".join(words).partition(": ")
    found = names.split()
    numbers = [*map(_number, found)]
    leaving = tuple(n for n, name in zip(numbers, found, strict=True) if name.startswith("-"))
    reason = reason or self.view.reason
    return members.view(int(number), *numbers, reason=reason, leaving=leaving)
