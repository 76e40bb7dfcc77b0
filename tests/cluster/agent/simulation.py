"""Agents in memory: cores, a network, a store and workers, on a virtual clock.

Nothing here waits: the clock jumps from one happening to the next, in an order
that is the same each time.
"""

import heapq
import itertools
import random

from bamboo_jax.cluster import detection
from bamboo_jax.cluster import frames
from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import core
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import options as agent_options
from bamboo_jax.cluster.agent import state as state_lib
from bamboo_jax.cluster.sessions import eras as eras_lib
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.cluster.store import registry as registry_lib

_NETWORK_SECS = 0.001
_STORE_SECS = 0.003
_COMPILE_SECS = 1.0


def make_options(name, **changes):
  """Returns what an agent of the simulation is told."""
  told = dict(
      run="run",
      name=name,
      zone="a",
      host="h",
      num_nodes=4,
      max_nodes=None,
      place=lambda zones: {ticket: ticket for ticket in zones},
      config={"seed": 0},
      command=(),
      log="",
      limits=detection.Limits(),
      era=eras_lib.Era(0, "h:1", 64),
  )
  return agent_options.Options(**{**told, **changes})


class Etcd:
  """As much of `etcd.Etcd` as the registry needs; leases follow `clock`."""

  endpoint = "store"

  def __init__(self, clock):
    self._clock = clock
    self._entries = {}  # The entry and its lease, by key.
    self._leases = {}  # How long each lasts, and until when.
    self._revisions = itertools.count(1)

  def get(self, key):
    entry, lease = self._entries.get(key, (None, 0))
    is_over = lease and self._leases.get(lease, (0, 0))[1] < self._clock()
    return None if is_over else entry

  def get_all(self, prefix, *, after=""):
    keys = (k for k in sorted(self._entries) if k.startswith(prefix))
    entries = (self.get(k) for k in keys if not after or k > prefix + after)
    return [e for e in entries if e is not None]

  def get_last(self, prefix):
    return (self.get_all(prefix) or [None])[-1]

  def put(self, key, value, *, lease=0):
    entry = etcd_lib.Entry(key, value, next(self._revisions))
    self._entries[key] = entry, lease

  def swap(self, key, value, *, revision, lease=0):
    found = self.get(key)
    if (found.revision if found else 0) != revision:
      return False
    self.put(key, value, lease=lease)
    return True

  def grant_lease(self, secs):
    lease = len(self._leases) + 1
    self._leases[lease] = secs, self._clock() + secs
    return lease

  def keep_lease(self, lease):
    secs, end = self._leases[lease]
    if end >= self._clock():
      self._leases[lease] = secs, self._clock() + secs
    return end >= self._clock()

  def revoke_lease(self, lease):
    self._leases[lease] = 0, float("-inf")


class World:
  """The network, the store and all nodes, by name.

  With a seed each direction of each pair of nodes has a latency of its own.
  """

  def __init__(self, seed=None):
    self.random = None if seed is None else random.Random(seed)
    self.now = 0.0
    self._latencies = {}
    self.etcd = Etcd(lambda: self.now)
    self.nodes = {}
    self.numbers = itertools.count()
    self._due = []
    self._order = itertools.count()

  def at(self, secs, call, *args):
    """Has something happen `secs` from now."""
    due = (self.now + secs, next(self._order), call, args)
    heapq.heappush(self._due, due)

  def run(self, secs):
    """Lets `secs` pass."""
    end = self.now + secs
    while self._due[0][0] <= end:
      self.now, _, call, args = heapq.heappop(self._due)
      call(*args)
    self.now = end

  def add(self, name, **changes):
    """Starts an agent."""
    self.nodes[name] = Node(self, make_options(name, **changes))
    return self.nodes[name]

  def latency(self, *names):
    if self.random is None:
      return _NETWORK_SECS
    drawn = self.random.uniform(0.1, 10.0) * _NETWORK_SECS
    return self._latencies.setdefault(names, drawn)

  def find(self, incarnation):
    return next(
        (n for n in self.nodes.values() if n.incarnation == incarnation), None
    )

  @property
  def alive(self):
    return {n: node for n, node in self.nodes.items() if node.is_alive}

  @property
  def views(self):
    """Number and member names of the view of each agent that lives."""
    return {
        name: (view.number, "".join(sorted(m.name for m in view.members)))
        for name, node in self.alive.items()
        for view in [node.state.roster.view]
    }


class Node:
  """A machine with an agent, and a worker that only says what it must.

  Attributes:
    ended: The `End` of the agent, None as long as it lives.
    told: What the worker was told.
    is_cut_off: Whether nobody can be reached but the store.
  """

  def __init__(self, world, options):
    self.world = world
    self.is_cut_off = False
    self.told = []
    self._num_beats = 0
    self._begin(options)
    self._tick()

  def _begin(self, options):
    number = next(self.world.numbers)
    self.incarnation = f"life {number}"
    self.state = state_lib.State(options, incarnation=self.incarnation)
    self.registry = registry_lib.Registry(self.world.etcd, options.run)
    self.ended = None
    self.is_dead = self.has_worker = False
    self.posted = set()
    self._links = {}  # What is still to be said, None once there is a link.
    self.tell(events_lib.Began())

  @property
  def is_alive(self):
    return not self.is_dead and self.ended is None

  def tell(self, event, *, life=None):
    """Has the core deal with an event, if it is still that of `life`."""
    if self.is_alive and life in (None, self.incarnation):
      for action in core.on(self.state, event, self.world.now):
        if self.is_alive:
          self._carry_out(action)

  # What may happen to it.

  def kill(self):
    """The machine is gone, and its connections are closed."""
    self.vanish()
    self._close()

  def vanish(self):
    """The machine is gone, and nobody is told."""
    self.is_dead, self.has_worker = True, False

  def kill_worker(self, code=-9):
    """The worker ends."""
    if self.has_worker:
      self.has_worker = False
      self._later(0.01, events_lib.WorkerExited(code))

  def say(self, message):
    """The worker says something."""
    if self.has_worker:
      self._later(0.0, events_lib.WorkerSaid(message))

  # What the core wants.

  def _later(self, secs, event):
    life = self.incarnation
    self.world.at(secs, lambda: self.tell(event, life=life))

  def _tick(self):
    if not self.is_dead:
      self.tell(events_lib.Ticked())
      self.say(messages.WorkerBeat(self._num_beats, is_waiting=False))
      self._num_beats += 1
      self.world.at(self.state.options.limits.heartbeat_secs, self._tick)

  def _carry_out(self, action):
    match action:
      case events_lib.Ask(flow, events_lib.Store(method, args)):
        life = self.incarnation
        self.world.at(
            _STORE_SECS, lambda: self._ask_store(life, flow, method, args)
        )
      case events_lib.Ask(flow, request):
        self._answer(flow, request)
      case events_lib.Dial(member):
        self._links[member.incarnation] = []
        self.world.at(_NETWORK_SECS, self._connect, member)
      case events_lib.Send(message, None):
        for other, unsaid in self._links.items():
          if unsaid is None:
            self._send(other, message)
      case events_lib.Send(message, to):
        if self._links.get(to, ()) is None:
          self._send(to, message)
        elif to in self._links:
          self._links[to].append(message)
      case events_lib.Cut(incarnation):
        self._hang_up(incarnation)
      case events_lib.TellWorker(message):
        self._hear_agent(message)
      case events_lib.KillWorker():
        self.kill_worker()
      case events_lib.End():
        self.ended = action
        self._end()

  def _ask_store(self, life, flow, method, args):
    answer = error = None
    try:
      answer = method(self.registry, *args)
    except (OSError, ValueError) as failure:
      error = failure
    self.tell(events_lib.Answered(flow, answer, error), life=life)

  def _answer(self, flow, request):
    match request:
      case events_lib.Sleep(secs):
        life, world = self.incarnation, self.world
        world.at(
            secs,
            lambda: self.tell(events_lib.Answered(flow, world.now), life=life),
        )
      case events_lib.StartWorker():
        self.has_worker = True
        self.say(messages.InEra(0))
        self._later(
            _COMPILE_SECS, events_lib.WorkerSaid(messages.WorkerReady())
        )
        self._later(0.0, events_lib.Answered(flow))
      case events_lib.Listen() | events_lib.OpenService() | events_lib.Reach():
        self._later(0.0, events_lib.Answered(flow, 1))

  def _connect(self, member):
    other = self.world.find(member.incarnation)
    if self.is_cut_off or (other and other.is_cut_off):
      return
    if other is None or not other.is_alive:
      refused = events_lib.PeerLost(member.incarnation, "refused")
      self.tell(refused)
    elif self.is_alive and member.incarnation in self._links:
      other.tell(events_lib.PeerCame(self.state.roster.me))
      unsaid, self._links[member.incarnation] = (
          self._links[member.incarnation],
          None,
      )
      self.tell(events_lib.PeerReached(member.incarnation))
      for message in unsaid:
        self._send(member.incarnation, message)

  def _send(self, incarnation, message):
    (content,) = frames.Decoder().feed(messages.encode(message))
    said = events_lib.PeerSaid(
        self.incarnation, messages.parse(content, messages.FROM_AGENT)
    )
    self._reach(incarnation, said)

  def _reach(self, incarnation, event):
    other = self.world.find(incarnation)
    if other and not self.is_cut_off and not other.is_cut_off:
      names = self.state.options.name, other.state.options.name
      other._later(self.world.latency(*names), event)

  def _hang_up(self, incarnation):
    if self._links.pop(incarnation, ()) is None:
      reason = "its agent closed the connection"
      self._reach(incarnation, events_lib.PeerLost(self.incarnation, reason))

  def _close(self):
    for incarnation in list(self._links):
      self._hang_up(incarnation)

  def _end(self):
    if self.state.is_done:
      for other in [i for i, unsaid in self._links.items() if unsaid is None]:
        self._send(other, messages.Done())
    self.has_worker = False
    self._close()
    self.registry.leave()
    if (options := self.state.successor) is not None:
      self.world.at(0.1, self._begin, options)

  def _hear_agent(self, message):
    """The worker begins with each view, and tells who trains what."""
    self.told.append(message)
    match message:
      case messages.NewView(view) if self.state.roster.me in view.members:
        self.posted.add(view.number)
        self.say(messages.Post(view.number, "begun", self.state.options.name))
      case messages.Gathered(view, "begun"):
        self.say(messages.Adopt(view))
        self.say(messages.Assignment({"view": view}))
