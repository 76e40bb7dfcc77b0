"""The arrival of a node: at the beginning, later, or to begin a run anew.

  this agent           store          others            coordinator
      |-- 1 config ------>|              |                   |
      |<- 2 is it over? --|              |                   |
      |<- 3 number -------|              |                   |
      |-- 4 address ----->|-- "look" --->|                   |
      |<----------------- 5 dial; views, assignment          |
      |-- 6 wants an era with a slot --->|------------------>|
      |                   |              |                   |
      |   7 starts its worker, which hears of the era and the assignment,
      |     compiles, and says that it is ready
      |------------------ 8 "ready" ---->|
      |                   |<- 9 view N+1 with it, by the leader
      |<----------------- 10 "view" -----|

After that all agents are alike; see `membership`.
"""

from bamboo_jax.cluster import messages
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import membership
from bamboo_jax.cluster.agent import state as state_lib
from bamboo_jax.cluster.store import registry as registry_lib

_Registry = registry_lib.Registry
_FIRST_LOOK_SECS = 0.1  # Between two looks at the store, before the first view.
_LOOK_SECS = 1.0  # After it.


def live(state: state_lib.State) -> events_lib.Flow:
  """Joins the run, and starts the flows that go on to its end."""
  options, roster = state.options, state.roster
  yield events_lib.store(_Registry.check_config, options.config)
  is_anew = yield from is_restart(options.after_view)
  number = yield from take_number(state, is_first=not is_anew)
  port = yield events_lib.Listen()
  roster.me = views.Member(
      number, options.name, options.zone, state.incarnation, options.host, port
  )
  roster.known[state.incarnation] = roster.me
  yield events_lib.store(_Registry.register, roster.me)
  yield from state.services.wait_slot(number)
  yield events_lib.StartWorker(number)
  state.has_worker = True
  state.watch.begin(state.now)
  state.tell_worker(messages.NewEra(state.services.seen))
  if is_anew:
    state.tell_worker(messages.Assignment({"restart": True}))
  elif (yield events_lib.store(_Registry.read_view)) is None:
    state.tell_worker(messages.Assignment({}))  # It is the beginning.
  state.start(look(state))
  state.start(_keep_lease(roster.me))
  if options.notices is not None:
    membership.take_notice(state, (yield events_lib.WaitNotice()))


def look(state: state_lib.State) -> events_lib.Flow:
  """Finds agents and views in the store that it was not told of."""
  while True:
    try:
      for member in (yield events_lib.store(_Registry.members)):
        state.dial(member)
      yield from membership.read(state)
      yield from membership.look_at_services(state)
    except OSError as error:
      state.warn(f"{error}")
    is_begun = bool(state.roster.view.members)
    yield events_lib.Sleep(_LOOK_SECS if is_begun else _FIRST_LOOK_SECS)


def _keep_lease(me: views.Member) -> events_lib.Flow:
  while True:
    yield events_lib.Sleep(registry_lib.LEASE_SECS / 3)
    try:
      yield events_lib.store(_Registry.renew, me)
    except OSError:
      continue  # Read by nobody to find a death.


def is_restart(after_view: int) -> events_lib.Flow:
  """Returns whether all members of the run are gone, so that it begins anew.

  `after_view` is the last view that is known to be over, -1 if none is.
  """
  while not (yield from _begin_anew()):
    view = yield events_lib.store(_Registry.read_view)
    if view is None or view.number > after_view:
      return False
    yield events_lib.Sleep(_FIRST_LOOK_SECS)  # Others have yet to end.
  return True


def _begin_anew() -> events_lib.Flow:
  """Writes an empty view if all members are gone; returns whether they were."""
  view = yield events_lib.store(_Registry.read_view)
  if view is None:
    return False
  alive = {
      member.incarnation
      for member in (yield events_lib.store(_Registry.members))
  }
  if any(member.incarnation in alive for member in view.members):
    return False
  if view.members:
    reason = f"nobody is left of view {view.number}"
    yield events_lib.store(
        _Registry.write_view,
        views.View(view.number + 1, (), reason, era=view.era),
    )
  return True


def take_number(state: state_lib.State, *, is_first: bool) -> events_lib.Flow:
  """Returns the number of this node, once the first nodes are known."""
  options, ticket = state.options, -1
  while ticket < 0 or (yield from state.services.is_late(ticket)):
    ticket = yield events_lib.store(
        _Registry.take_ticket, options.max_nodes, options.zone
    )
  while is_first and ticket < options.num_nodes:
    zones = yield events_lib.store(_Registry.zones)
    if zones.keys() >= set(range(options.num_nodes)):
      first = {t: zones[t] for t in range(options.num_nodes)}
      return options.place(first)[ticket]
    yield events_lib.Sleep(_FIRST_LOOK_SECS)
  return ticket
