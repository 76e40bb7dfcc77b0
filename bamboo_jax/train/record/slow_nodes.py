"""Names the nodes that are slow, and lets them hand over if so configured."""

import collections
from collections.abc import Iterable
from typing import Any

from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.recovery import slowness
from bamboo_jax.train import run_state as run_state_lib
from bamboo_jax.train.record import outputs as outputs_lib

EVENT = "slow"


class SlowNodes:
  """Judges the times of all nodes after each step, equally on all members.

  Args:
    state: State of this member.
    outputs: Gets one line and one event for each slow node.
    response: The option `config.recovery.slow`.

  Attributes:
    named: The slow nodes so far, as in their events.
  """

  def __init__(
      self,
      state: run_state_lib.RunState,
      outputs: outputs_lib.Outputs,
      *,
      response: str,
  ) -> None:
    self._state, self._outputs, self._response = state, outputs, response
    self._history: collections.deque[slowness.Step] = collections.deque(
        maxlen=slowness.NUM_KEPT
    )
    self._num_heard = 0  # Since a change of the view.
    self._numbers: set[int] = set()  # Nodes that have been named.
    self.named: list[dict[str, Any]] = []

  def forget(self) -> None:
    """Forgets all steps, in a new view, so that all members judge equally."""
    self._history.clear()
    self._num_heard, self._state.slow = 0, {}

  def hear(self, said: Iterable[slowness.Step]) -> None:
    """Judges a committed step; `said` has the times of each member's nodes."""
    self._num_heard += 1
    if self._num_heard <= slowness.NUM_SKIPPED:
      return
    self._history.append({n: s for nodes in said for n, s in nodes.items()})
    for node, factor in slowness.find_slow([*self._history]).items():
      if node not in self._numbers:
        self._numbers.add(node)
        self._name(node, factor)
      if self._response == "deal" and node not in self._state.layout.slow:
        self._state.slow = {**self._state.slow, node: round(factor, 1)}

  def _name(self, node: int, factor: float) -> None:
    cohort, steps = self._state.cohort, self._state.steps
    (member,) = [m for m in cohort.view.members if m.number == node]
    now = self._history[-1][node]
    values: dict[str, str | float] = {
        "node": member.name,
        "host": member.host,
        "factor": round(factor, 2),
        "busy_ms": round(1e3 * now.busy_secs, 1),
    }
    hosts = [m.host for m in cohort.view.members]
    before = sum(one["host"] == member.host for one in self.named)
    if before and hosts.count(member.host) == 1:  # Not a machine of several.
      values["named_before"] = before
    self.named.append({"step": steps, **values})
    if self._state.is_writer:
      line = {"step": steps, **values}
      self._outputs.show(f"slow {progress_lib.render_line(line)}")
      self._outputs.write_event(EVENT, step=steps, values=values)
    if self._response == "remove" and node in cohort.hosted:
      stay = cohort.newest.numbers - {*cohort.newest.leaving, node}
      if len(stay) >= len(self._state.layout.ways[0].owners):
        why = f"it is {factor:.1f} times as slow as it should be"
        cohort.report("slow", node=node, reason=why)
