"""Deaths in the middle of a step: the state of all nodes, and the planned cost.

A node dies before an instruction of its row. By then the other nodes have run
everything that the plan places earlier; then they are notified, plan the rest
and run it. A transfer counts only if both of its ends were run: values sent and
not received are still with their sender.
"""

import dataclasses

from bamboo_jax.benchmarks import predict
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.schedule import timeline as timeline_lib


@dataclasses.dataclass(frozen=True)
class Death:
  """The death of node `victim`.

  Attributes:
    at: Index in its row of the instruction before which it dies; the length of
      the row if it dies at its end.
    before: That instruction, or "end".
    done: The (node, instruction) pairs that have run, in an order in which one
      thread can run them.
    died_ms: Planned time from the start of the step until all of that has run.
  """

  victim: int
  at: int
  before: str
  done: tuple[tuple[int, instruction_lib.Instruction], ...]
  died_ms: float


def plan_death(
    timeline: timeline_lib.Timeline, *, victim: int, at: int
) -> Death:
  """Returns the state when `victim` dies before instruction `at` of its row."""
  row = [*(str(slot.instruction) for slot in timeline.rows[victim]), "end"]
  order = linearize.linearize([timeline])
  places = [k for k, (node, _) in enumerate(order) if node == victim]
  begun = order[: [*places, len(order)][at]]
  ends = {i.transfer(node) for node, i in begun if i.is_receive}
  done = tuple(
      (node, i)
      for node, i in begun
      if not i.is_send or i.transfer(node) in ends
  )
  end_ms = {(s.node, s.instruction): s.end_ms for s in timeline.slots}
  died_ms = max((end_ms[entry] for entry in done), default=0.0)
  return Death(victim, at, row[at], done, died_ms)


def spread_deaths(
    plan: predict.ModePlan, *, num_deaths: int
) -> tuple[Death, ...]:
  """Returns deaths of each node in the middle of equal parts of the step."""
  timeline = plan.whole.timeline
  times = [timeline.span_ms * (k + 0.5) / num_deaths for k in range(num_deaths)]
  return tuple(
      plan_death(timeline, victim=victim, at=sum(s.end_ms <= time for s in row))
      for victim in plan.roles.nodes
      for row in [timeline.rows[victim]]
      for time in times
  )


def predict_longer_ms(death: Death, plan: predict.ModePlan) -> float:
  """Returns the predicted delay of the end of the rows, in ms.

  Raises `base.UnrecoverableHereError` if a stage of the victim has no shadow.
  """
  held = {
      node: holdings_lib.after(i for n, i in death.done if n == node)
      for node in plan.roles.nodes
  }
  after, valid = failover.fail_over(plan.roles, held, {death.victim})
  rest = plan.rest(after, valid)
  return death.died_ms + rest.span_ms - plan.whole.timeline.span_ms
