"""Names the nodes that are slow, and lets them hand over if so configured.

With `recovery.slow="deal"` a slow node gets its work back once it
is fast again, or, if it has none that could be measured, on trial. Each return
in a view doubles the number of steps that the next one takes.
"""

import collections
from collections.abc import Iterable, Mapping
import dataclasses

from bamboo_jax import base
from bamboo_jax.recovery import slowness
from bamboo_jax.train import run_state as run_state_lib
from bamboo_jax.train.record import outputs as outputs_lib


class SlowNodes:
  """Judges the times of all nodes after each step, equally on all members.

  Args:
    state: State of this member; its `named` and `slow` are kept.
    response: The option `config.recovery.slow`.
  """

  def __init__(
      self, state: run_state_lib.RunState, outputs: outputs_lib.Outputs, *, response: str
  ) -> None:
    self._state, self._outputs, self._response = state, outputs, response
    self._relieves = response == "deal"
    self._history: collections.deque[slowness.Step] = collections.deque(maxlen=slowness.NUM_KEPT)
    self.forget()

  def forget(self) -> None:
    """Forgets all steps, in a new view, so that all members judge equally."""
    self._history.clear()
    self._num_heard, self._state.slow = 0, {}
    # Have shares again; former factors.
    self._tried: dict[base.NodeId, float] = {}
    self._num_returns: collections.Counter[base.NodeId] = collections.Counter()
    self._num_idle: collections.Counter[base.NodeId] = collections.Counter()

  def hear(self, said: Iterable[slowness.Step]) -> None:
    """Judges a committed step; `said` has the times of each member's nodes."""
    self._num_heard += 1
    if self._num_heard <= slowness.NUM_SKIPPED:
      return
    self._history.append({n: s for nodes in said for n, s in nodes.items()})
    if self._relieves:
      self._give_back()
    named = {one.number for one in self._state.named if not one.over_step}
    for node, factor in slowness.find_slow([*self._history]).items():
      if node not in named:
        self._name(node, factor)
      if self._relieves and node not in self._slow:
        self._deal(node, round(factor, 1))

  @property
  def _slow(self) -> dict[base.NodeId, float]:
    """Factors of nodes that hand over, or give work away."""
    slow = {**self._state.layout.slow, **self._state.slow}
    return {node: factor for node, factor in slow.items() if factor > 1}

  def _deal(self, node: base.NodeId, factor: float) -> None:
    self._state.slow = {**self._state.slow, node: factor}
    self._tried.pop(node, None)

  def _give_back(self) -> None:
    """Gives shares back, and takes them again if the node is still slow."""
    rows, owners = self._state.rules.rows, self._state.layout.nodes
    dealt = {n: f for n, f in self._slow.items() if n in owners}
    known = {**self._tried, **dealt}
    if rows is None or not known:
      return
    counts = slowness.count_fast([*self._history], known, rows.costs)
    for node, num in counts.items():
      idle, again = self._num_idle, self._num_returns[node]
      idle[node] = 0 if num else idle[node] + 1
      least = min(slowness.NUM_KEPT, slowness.NUM_RECOVERED << again)
      if node in dealt:
        if num >= least or idle[node] >= slowness.NUM_IDLE << again:
          self._deal(node, 1.0)
          self._tried[node], idle[node] = dealt[node], 0
          self._num_returns[node] += 1
      elif num <= -slowness.NUM_CONFIRMED:
        self._deal(node, self._tried[node])
      elif num >= slowness.NUM_RECOVERED:
        del self._tried[node]
        self._end(node)

  def _end(self, node: base.NodeId) -> None:
    """Notes that a node is fast again."""
    state = self._state
    for index, one in enumerate(state.named):
      if one.number == node and not one.over_step:
        over = dataclasses.replace(one, over_step=state.steps)
        state.named = (*state.named[:index], over, *state.named[index + 1 :])
        where = {"node": one.node, "host": one.host}
        self._tell("slow_over", {**where, "slow_step": one.step})

  def _name(self, node: base.NodeId, factor: float) -> None:
    cohort, steps = self._state.cohort, self._state.steps
    (member,) = [m for m in cohort.view.members if m.number == node]
    hosts = [m.host for m in cohort.view.members]
    before = sum(one.host == member.host for one in self._state.named)
    one = slowness.Named(
        step=steps,
        number=node,
        node=member.name,
        host=member.host,
        factor=round(factor, 2),
        busy_ms=round(1e3 * self._history[-1][node].busy_secs, 1),
        # Not on a machine of several nodes.
        named_before=before if hosts.count(member.host) == 1 else 0,
    )
    self._state.named += (one,)
    self._tell("slow", one.values)
    if self._response == "remove" and node in cohort.hosted:
      stay = cohort.newest.numbers - {*cohort.newest.leaving, node}
      if len(stay) >= len(self._state.layout.ways[0].owners):
        why = f"it is {factor:.1f} times as slow as it should be"
        cohort.report("slow", node=node, reason=why)

  def _tell(self, event: str, values: Mapping[str, int | float | str]) -> None:
    if self._state.is_writer:
      self._outputs.write_event(event, step=self._state.steps, values=values)
