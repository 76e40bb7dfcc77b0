"""Costs of an agent in large clusters: at most linear in the number of nodes."""

import collections

from absl.testing import parameterized

from tests import samples
from tests.explorer import history, plans

_FORMED_SECS, _LOST_SECS, _JOINED_SECS, _SILENT_SECS = 4.0, 2.0, 3.0, 6.0


def measure(num_nodes):
  """Forms a view, loses a tenth, gains a tenth, then one node falls silent.

  Returns costs per node: the largest number of connections of one; posts to each other node
  beside the one for each step. Also the time until the silence was found.
  """
  tenth = max(num_nodes // 10, 1)
  formed_secs = _FORMED_SECS + num_nodes / 32  # Nodes take their numbers one by one.
  lost_secs = formed_secs + _LOST_SECS
  joined_secs = lost_secs + _JOINED_SECS
  kills = [plans.SimFault(formed_secs, "kill", (f"n{i}",)) for i in range(0, 2 * tenth, 2)]
  joins = [plans.SimFault(lost_secs, "join", (f"n{num_nodes + i}",)) for i in range(tenth)]
  silent = plans.SimFault(joined_secs, "vanish", ("n1",))
  one = history.ClusterHistory(plans.FaultPlan(0, num_nodes, 0, (*kills, *joins, silent)))
  sent = collections.Counter()
  one.network.on_send = lambda message: sent.update([type(message).__name__])
  sizes, most = [], 0
  one.clock.run(formed_secs - 1.0)
  calm = sent["Beat"]
  one.clock.run(formed_secs)
  calm = sent["Beat"] - calm
  for until_secs in (formed_secs, lost_secs, joined_secs):
    one.clock.run(until_secs)
    alive = [m for m in one.machines.values() if m.is_alive and m.agent.roster.is_member]
    views = {(v.number, len(v.members)) for m in alive for v in [m.agent.roster.view]}
    assert len(views) == 1, views
    sizes += [size for _, size in views]
    most = max(most, *collections.Counter(c.source for c in one.network.links).values())
  steps = max(m.worker.steps for m in alive)
  costs = {
      "connections": most,
      "calm_beats_per_sec": calm / num_nodes,
      "beats_per_sec": sent["Beat"] / num_nodes / joined_secs,
      "other_posts": sent["Post"] / num_nodes / (num_nodes - 1) - steps,
      "kept": max(m.agent.num_kept for m in alive),
  }
  one.clock.run_for(_SILENT_SECS)
  *_, (made_secs, _, (view,)) = (event for event in one.events(tuple) if not event[1])
  found = one.find_violations()
  one.close()
  assert found == [], found
  assert sizes == [num_nodes, num_nodes - tenth, num_nodes], sizes
  assert {m.host for m in view.members}.isdisjoint(["n1"]), view.reason
  return {**costs, "silent_secs": made_secs - joined_secs}


class ScaleTest(parameterized.TestCase):

  @parameterized.parameters(8, 64 if samples.is_all() else 32)
  def test_costs(self, num_nodes):
    others = num_nodes - 1
    budget = {
        "connections": others,
        "calm_beats_per_sec": 2.1 * others,
        "beats_per_sec": 2.1 * others,
        "other_posts": 12,
        "kept": 12 + others / 8,
        "silent_secs": 5.0,
    }
    costs = measure(num_nodes)
    self.assertEqual({name: cost for name, cost in costs.items() if cost > budget[name]}, {})
