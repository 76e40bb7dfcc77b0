"""How a node joins: at the start, later, or when the run restarts.

  this agent           judge          others
      |-- 1 same run? ---->|              |
      |<- 2 number --------|              |
      |-- 3 address ------>|-- "marks" -->|
      |<----------------- 4 dial; views, assignment
      |   5 is this the start, are members alive, or is the run over?
      |                    |              |
      |   6 starts its worker, which receives the assignment, compiles, and
      |     reports that it is ready
      |------------------ 7 "ready" ----->|
      |                    |<- 8 view N+1 with it, by the leader
      |<----------------- 9 "view" -------|

If the run starts without a node, the worker of that node is useless: the agent
starts over with a new one. Once joined, all agents are alike; see `membership`,
and `run_over` for 5.
"""

from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.cluster import judge, messages, views
from bamboo_jax.cluster.agent import events as events_lib, membership, state as state_lib

_POLL_SECS = 0.1


def join(state: state_lib.AgentState) -> events_lib.Flow:
  """Joins the run, and starts the flows that last until its end."""
  options, roster = state.options, state.roster
  if not options.is_again:
    yield from state.ask(judge.call, "probe", state.incarnation)
  begun = yield from _find_run(state)
  if (yield from state.ask(judge.call, "find", f"done/{state.run}")):
    state.do(events_lib.Log(f"All steps of the run in {options.workdir} are done."))
    state.finish(events_lib.End())
    return
  number = yield from take_number(state, begun)
  port = yield events_lib.Listen()
  roster.me = views.Member(
      number, options.name, options.zone, state.incarnation, options.host, port
  )
  roster.known[state.incarnation] = roster.me
  yield from state.ask(membership.mark, state)
  state.start(membership.look(state))
  yield from _find_origin(state)
  yield events_lib.StartWorker(number, state.stamp)
  state.has_worker = True
  state.watch.begin(state.now)
  if state.origin is not None:
    facts = {"restart": True} if state.origin > state.run else {}
    state.tell_worker(messages.Assignment(facts))
  elif state.received is not None:
    state.tell_worker(state.received)
  if options.notices is not None:
    membership.take_notice(state, (yield events_lib.WaitNotice()))


def _find_run(state: state_lib.AgentState) -> events_lib.Flow:
  """Finds the run of the folder, and joins it; returns its newest view.

  A run of another config is refused; if nobody of it is left, another begins.
  """
  options = state.options
  while True:
    view = yield from state.ask(judge.newest_view)
    if judge.is_alone(view):
      fault = f"bamboo train is running in {options.workdir}; end it, or name another --workdir."
    else:
      own = {"id": state.incarnation, "machine": options.machine, "config": options.config}
      run = yield from state.ask(judge.call, "make", f"run/{view.run}", own)
      difference = judge.find_difference(run["config"], options.config)
      fault = f"This node does not fit the run in {options.workdir}: {difference}."
      if not difference:
        state.run, state.stamp = view.run, run["id"]
        return view
    if (yield from _is_alive(state, view)):
      raise ValueError(fault)
    newest = yield from state.ask(judge.newest_view)
    begun = views.begin_run(newest, f"{options.name} begins another run")
    yield from state.ask(judge.make_view, newest, begun)


def _is_alive(state: state_lib.AgentState, view: views.View) -> events_lib.Flow:
  """Whether anybody of a run is alive: a member, or before the first an agent."""
  patience_secs = state.options.limits.most_silence_secs
  if view.members:
    newest = yield from state.ask(judge.ask, view, state.options.name, patience_secs)
    return not newest.is_ask
  before = yield from state.ask(judge.call, "marks", "nodes")
  yield events_lib.Sleep(patience_secs)
  after = yield from state.ask(judge.call, "marks", "nodes")
  newest = yield from state.ask(judge.newest_view)
  return newest != view or any(before.get(life) != mark for life, mark in after.items())


def take_number(state: state_lib.AgentState, begun: views.View) -> events_lib.Flow:
  """Returns the number of this node, once all of the first nodes are known.

  If some of them do not join in time, numbers follow the order of joining.
  `begun` is the newest view: the first nodes join before the run has any other.
  """
  options, prefix = state.options, f"tickets/{state.run}"
  own = {"zone": options.zone, "incarnation": state.incarnation, "name": options.name}
  ticket, there = (yield from state.ask(judge.call, "newest", prefix, -1)), None
  while there != own:
    ticket += 1
    if ticket >= types.MAX_NODES:
      raise ValueError(
          f"The run in {options.workdir} has had {types.MAX_NODES} nodes, dead ones included, and "
          "can have no more. End it and start it again: it goes on from the last checkpoint."
      )
    there = yield from state.ask(judge.call, "make", f"{prefix}/{ticket}", own)
  if begun.number > state.run or ticket >= options.num_nodes:
    return base.NodeId(ticket)
  tickets: list[dict[str, str]] = []
  end_secs = (yield events_lib.Sleep(0.0)) + options.limits.gather_secs
  while True:
    tickets += yield from state.ask(judge.call, "follow", prefix, len(tickets) - 1)
    is_complete = len(tickets) >= options.num_nodes
    now = yield events_lib.Sleep(0.0 if is_complete else _POLL_SECS)
    if is_complete or now >= end_secs:
      key = f"placed/{state.run}"
      is_placed = yield from state.ask(judge.call, "make", key, is_complete)
      state.is_short = not is_placed
      first = _order(tickets[: options.num_nodes])
      return options.place(first)[base.NodeId(ticket)] if is_placed else base.NodeId(ticket)


def _order(tickets: list[dict[str, str]]) -> dict[base.NodeId, str]:
  """Returns the zones of nodes, by ticket.

  In the order of names (n2 before n10), not of joining, so that placement does
  not depend on which node joins first.
  """
  names = [(len(ticket["name"]), ticket["name"], n) for n, ticket in enumerate(tickets)]
  return {base.NodeId(n): tickets[n]["zone"] for *_, n in sorted(names)}


def _find_origin(state: state_lib.AgentState) -> events_lib.Flow:
  """Waits until it is known whether to join members or to start the run."""
  roster = state.roster
  while True:
    if roster.registered is not None:  # The records have been read.
      if not roster.view.members:
        state.has_origin, state.origin = True, roster.view.number
        return
      state.epoch = roster.view.epoch
      if state.connected & {*roster.incarnations} - roster.gone.keys():
        state.has_origin = True
        return
    yield events_lib.Sleep(_POLL_SECS)
