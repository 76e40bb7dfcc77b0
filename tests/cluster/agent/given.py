"""What an agent under test is told, and one to tell it to."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax import config
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import messages, views
from bamboo_jax.cluster.agent import core, events as events_lib, state as state_lib
from tests import members


def make_options(name, **changes):
  """Returns what an agent of the simulation is told."""
  told = dict(
      name=name,
      zone="a",
      workdir="workdir",
      host="h",
      num_nodes=4,
      place=lambda zones: {ticket: ticket for ticket in zones},
      config={"seed": 0},
      command=(),
      log="",
      limits=config.ClusterSection(),
  )
  return state_lib.AgentOptions(**{**told, **changes})


def closed(number):
  return events_lib.PeerClosed(f"life {number}", "closed")


def refused(number):
  return events_lib.PeerFailed(f"life {number}", "refused", is_refused=True)


def silent(number, *whom, count=1, is_certain=False):
  """What a member says of others."""
  suspects = tuple(messages.Suspect(f"life {n}", "silent", is_certain) for n in whom)
  return said(number, messages.Suspects(count, suspects))


def claim(view):
  return events_lib.CallJudge("make", (f"views/{view.number}", json_lib.to_plain(view)))


def made_after(number):
  return events_lib.CallJudge("follow", ("views", number))


def plain(answer):
  """Returns an answer as the judge gives it: views as JSON."""
  if isinstance(answer, list):
    return list(map(plain, answer))
  return json_lib.to_plain(answer) if isinstance(answer, views.View) else answer


def send(flow, answer, known):
  """Returns the next request of a flow; `known` is there, where it looks for it."""
  request = flow.send(plain(answer))
  if request == find(known):
    request = flow.send(json_lib.to_plain(known))
  return request


def find(view):
  return events_lib.CallJudge("find", (f"views/{view.number}",))


def said(number, message):
  return events_lib.PeerSaid(f"life {number}", message)


class CoreCase(parameterized.TestCase):
  """One agent: events in, actions out."""

  def begin(self, *, me=0, numbers=(0, 1, 2), hosts="h", **changes):
    """An agent that is a member of view 1, and has nothing to do.

    `hosts` are those of the members, assigned in turn.
    """
    options = make_options(f"n{me}", **changes)
    self.state = state = state_lib.AgentState(options, incarnation=f"life {me}")
    state.roster.me = members.member(me, host=hosts[me % len(hosts)])
    state.stamp = "run"
    state.has_worker = True
    state.watch.begin(0.0)
    found = [members.member(n, host=hosts[n % len(hosts)]) for n in numbers]
    state.roster.adopt(dataclasses.replace(members.view(1), members=tuple(found)))
    state.has_origin, state.origin = True, 0
    for number in numbers:
      state.roster.meet(members.member(number))
      if number != me:
        state.watch.add(f"life {number}", 0.0)

  def on(self, event, now=1.0):
    return core.on(self.state, event, now)

  def sent(self, event):
    """Returns what is said to others, and to whom."""
    return find_sent(self.on(event))

  def asked(self, actions):
    """Returns what is asked for; the flow of the last is kept for `answer`."""
    asks = []
    for action in actions:
      if isinstance(action, events_lib.Ask):
        if action.request == find(self.state.roster.view):  # It is there still.
          there = events_lib.Answered(action.flow, plain(self.state.roster.view))
          (action,) = core.on(self.state, there, self.state.now)
        asks.append(action)
    if asks:
      self.flow = asks[-1].flow
    return [a.request for a in asks]

  def requested(self, event):
    return self.asked(self.on(event))

  def tick(self, now):
    """All live, and a heartbeat passes."""
    for number in range(4):
      self.on(said(number, messages.Beat()), now)
    return self.on(events_lib.Ticked(), now)

  def answer(self, answer=None, error=None, now=1.0):
    return self.on(events_lib.Answered(self.flow, plain(answer), error), now)


def find_sent(actions):
  """Returns messages and to whom they go, None for all."""
  sends = [a for a in actions if isinstance(a, events_lib.Send)]
  return [(a.message, to) for a in sends for to in a.to or (None,)]
