"""How a node joins: at the start, later, or when the run restarts.

  this agent           store          others
      |-- 1 stamp, ------>|              |
      |     config        |              |
      |<- 2 number -------|              |
      |-- 3 address ----->|-- "look" --->|
      |<----------------- 4 dial; views, assignment
      |   5 is this the start, are members alive, or is the run over?
      |                   |              |
      |   6 starts its worker, which receives the assignment, compiles, and
      |     reports that it is ready
      |------------------ 7 "ready" ---->|
      |                   |<- 8 view N+1 with it, by the leader
      |<----------------- 9 "view" ------|

If the run starts without a node, the worker of that node is useless: the agent
starts over with a new one. Once joined, all agents are alike; see `membership`,
and `run_over` for 5.
"""

import contextlib

from bamboo_jax.cluster import messages, views
from bamboo_jax.cluster.agent import events as events_lib, membership, run_stamp, state as state_lib
from bamboo_jax.cluster.store import registry as registry_lib

_Registry = registry_lib.Registry
_POLL_SECS = 0.1
_LOOK_SECS = 2.0  # Poll interval of the store without changes.
_NAME_SECS = 3 * registry_lib.LEASE_SECS  # A dead node's name is free.
_LOST_SECS = 1.0  # Retry interval while the store is unreachable.


def join(state: state_lib.AgentState) -> events_lib.Flow:
  """Joins the run, and starts the flows that last until its end."""
  options, roster = state.options, state.roster
  yield from run_stamp.find(state)
  check = events_lib.store(_Registry.check_config, options.config)
  yield from state.ask(check)
  number = yield from take_number(state)
  port = yield events_lib.Listen()
  roster.me = views.Member(
      number, options.name, options.zone, state.incarnation, options.host, port
  )
  roster.known[state.incarnation] = roster.me
  yield from _register(state)
  state.start(look(state))
  state.start(membership.look_at_folder(state))
  state.start(run_stamp.beat(state))
  state.start(_keep_lease(state))
  yield from _find_origin(state)
  if state.origin:  # The agent that ended the run may have died just then.
    yield from run_stamp.begin_life(state, state.origin)
  yield events_lib.StartWorker(number, state.stamp)
  state.has_worker = True
  state.watch.begin(state.now)
  if state.origin is not None:
    facts = {"restart": True} if state.origin else {}
    state.tell_worker(messages.Assignment(facts))
  elif state.received is not None:
    state.tell_worker(state.received)
  if options.notices is not None:
    membership.take_notice(state, (yield events_lib.WaitNotice()))


def _register(state: state_lib.AgentState) -> events_lib.Flow:
  """Registers this node for discovery.

  Raises `ValueError` if another live node has its name.
  """
  register = events_lib.store(_Registry.register, state.roster.me)
  end_secs = state.now + _NAME_SECS
  while not (yield from state.ask(register)):
    if state.now >= end_secs:
      raise ValueError(
          f"Another node {state.options.name!r} of run {state.options.run!r} "
          "is alive; give each node its own name."
      )
    yield events_lib.Sleep(_POLL_SECS)


def look(state: state_lib.AgentState) -> events_lib.Flow:
  """Polls the store, until the end, for agents and views not known yet.

  Connects to the agents and adopts the views; retries after `OSError`.
  """
  while True:
    try:
      published = state.published
      sight = yield from run_stamp.look(state)
      membership.learn(state, sight.views)
      membership.find_unpublished(state, sight.views, published)
      state.roster.registered = {m.incarnation for m in sight.members}
      state.dial(sight.members)
      yield events_lib.Sleep(_POLL_SECS)  # Changes come in bursts.
      yield events_lib.WatchStore(_LOOK_SECS, after=sight.revision)
    except OSError as error:
      state.warn(f"{error}")
      yield events_lib.Sleep(_LOST_SECS)


def _keep_lease(state: state_lib.AgentState) -> events_lib.Flow:
  while True:
    yield events_lib.Sleep(registry_lib.LEASE_SECS / 3)
    with contextlib.suppress(OSError):  # Not a sign of a death.
      yield events_lib.store(_Registry.renew, state.roster.me)


def _find_origin(state: state_lib.AgentState) -> events_lib.Flow:
  """Waits until it is known whether to join members or to start the run."""
  roster = state.roster
  while True:
    if roster.registered is not None:  # The store has been read.
      if roster.view.number and not roster.view.members:
        # The members of a later view may have ended before the store had it.
        yield from state.until_ok(membership.read_made, state)
      if not roster.view.members:
        state.has_origin, state.origin = True, roster.view.number
        return
      state.epoch = roster.view.epoch
      if state.connected & {*roster.incarnations} - roster.gone.keys():
        state.has_origin = True
        return
    yield events_lib.Sleep(_POLL_SECS)


def take_number(state: state_lib.AgentState) -> events_lib.Flow:
  """Returns the number of this node, once all of the first nodes are known.

  If some of them do not join in time, numbers follow the order of joining.
  """
  options = state.options
  ask = lambda method, *args: state.ask(events_lib.store(method, *args))
  view = yield from ask(_Registry.read_view)
  ticket = yield from ask(_Registry.take_ticket, options.zone, state.incarnation, options.name)
  if view is not None or ticket >= options.num_nodes:
    return ticket
  wanted = set(range(options.num_nodes))
  end_secs = (yield events_lib.Sleep(0.0)) + options.limits.gather_secs
  while True:
    zones = yield from ask(_Registry.zones)
    is_complete = zones.keys() >= wanted
    if not is_complete:
      yield from state.ask(events_lib.WatchStore(_LOOK_SECS))
    now = yield events_lib.Sleep(0.0)
    if is_complete or now >= end_secs:
      is_placed = yield from ask(_Registry.agree_to_place, is_complete)
      state.is_short = not is_placed
      first = {t: z for t, z in zones.items() if t in wanted}
      return options.place(first)[ticket] if is_placed else ticket
