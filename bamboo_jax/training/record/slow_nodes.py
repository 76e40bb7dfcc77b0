"""Names the nodes that are slow, and lets them hand over if so configured."""

import collections

from bamboo_jax import base
from bamboo_jax.recovery import slowness
from bamboo_jax.training import run_state as run_state_lib
from bamboo_jax.training.record import journal as journal_lib


class SlowNodes:
  """Judges the times of all nodes after each step, equally on all members.

  Args:
    state: State of this member; its `named` is kept.
    response: The option `config.recovery.slow`.
  """

  def __init__(
      self, state: run_state_lib.RunState, journal: journal_lib.Journal, *, response: str
  ) -> None:
    self._state, self._journal, self._response = state, journal, response
    self._history: collections.deque[slowness.Step] = collections.deque(maxlen=slowness.NUM_KEPT)
    self.forget()

  def forget(self) -> None:
    """Forgets all steps, in a new view, so that all members judge equally."""
    self._history.clear()
    self._num_heard = 0

  def hear(self, times: slowness.Step) -> None:
    """Judges a committed step, by the times of all nodes."""
    self._num_heard += 1
    if self._num_heard <= slowness.NUM_SKIPPED:
      return
    self._history.append(times)
    named = {one.number for one in self._state.named}
    for node, factor in slowness.find_slow([*self._history]).items():
      if node not in named:
        self._name(node, factor)

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
    if self._state.is_writer:
      self._journal.write_event("slow", step=steps, values=one.values)
    if self._response == "remove" and node in cohort.hosted:
      stay = cohort.newest.numbers - {*cohort.newest.leaving, node}
      if self._are_enough(len(stay)):
        why = f"it is {factor:.1f} times as slow as it should be"
        cohort.say(node, notice=why)

  def _are_enough(self, num_nodes: int) -> bool:
    """Whether `num_nodes` nodes can form pipelines, with at most one stage each."""
    try:
      partitions = self._state.rules.planner.partitions(num_nodes)
    except base.InfeasibleError:
      return False
    return num_nodes >= sum(p.num_stages for p in partitions)
