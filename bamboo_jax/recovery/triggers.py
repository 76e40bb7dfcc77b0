"""When it is time to make new pipelines, and whether that pays.

Bamboo (NSDI'23) keeps the number of stages, P, and makes floor(n / P) pipelines
of n nodes; the rest are spares. It reconfigures between two steps if spares can
relieve all nodes that have two stages, if so many have two that another loss
may well be fatal, or if there are nodes for one more pipeline. These are the
rules of its public simulator; each can be switched off. In addition new
pipelines may have to pay: in the time that is left they must do more steps than
the old ones, in spite of the pause.
"""

from collections.abc import Sequence
import dataclasses
import math

from bamboo_jax.plan import pipelines as pipelines_lib


@dataclasses.dataclass(frozen=True)
class Triggers:
  """What makes new pipelines desirable.

  Attributes:
    refill: There are as many spares as nodes with more than one stage.
    max_doubled: Twice the number of nodes with more than one stage, as a
      fraction of all nodes that train, is above this; None switches it off.
    grow: The nodes suffice for one more pipeline.
    must_pay: Only if new pipelines do more steps within the horizon.
  """

  refill: bool = True
  max_doubled: float | None = 0.05
  grow: bool = True
  must_pay: bool = True

  def __post_init__(self) -> None:
    if self.max_doubled is not None and not 0.0 <= self.max_doubled <= 2.0:
      raise ValueError(
          f"max_doubled must be from 0 to 2, got {self.max_doubled}."
      )


def target_pipelines(
    num_nodes: int, *, num_stages: int, max_pipelines: int | None = None
) -> int:
  """Returns how many pipelines of `num_stages` there should be."""
  wanted = num_nodes // num_stages
  return wanted if max_pipelines is None else min(wanted, max_pipelines)


def find_triggers(
    pipelines: Sequence[pipelines_lib.Pipeline],
    *,
    num_spares: int,
    num_stages: int,
    triggers: Triggers,
    max_pipelines: int | None = None,
) -> tuple[str, ...]:
  """Returns why new pipelines are desirable, in words; nothing if they are not.

  Args:
    pipelines: The pipelines between two steps.
    num_spares: Live nodes that own nothing.
    num_stages: Stages of each pipeline: P.
    triggers: What counts.
    max_pipelines: Most pipelines there may be; None does not limit them.
  """
  num_training = sum(len(p.nodes) for p in pipelines)
  num_doubled = sum(p.partition.num_stages - len(p.nodes) for p in pipelines)
  wanted = target_pipelines(
      num_training + num_spares,
      num_stages=num_stages,
      max_pipelines=max_pipelines,
  )
  reasons = []
  if triggers.refill and 0 < num_doubled <= num_spares:
    reasons.append(
        f"{num_spares} spares can take the {num_doubled} stages without a node "
        "of their own"
    )
  limit = triggers.max_doubled
  if (
      limit is not None
      and num_doubled
      and 2 * num_doubled > limit * num_training
  ):
    reasons.append(
        f"{num_doubled} stages have no node of their own, with {num_training} "
        f"nodes that is close to a fatal loss (limit {limit:g})"
    )
  if triggers.grow and wanted > len(pipelines):
    reasons.append(
        f"{num_training + num_spares} nodes suffice for {wanted} pipelines of "
        f"{num_stages}, there are {len(pipelines)}"
    )
  return tuple(reasons)


def is_worth_it(
    *, now_ms: float, after_ms: float, pause_ms: float, remaining_ms: float
) -> bool:
  """Returns whether more steps are done after a pause than without it.

  Args:
    now_ms: Time of a step with the pipelines as they are; infinity if they
      cannot go on.
    after_ms: Time of a step with new pipelines.
    pause_ms: How long training stands still to make them.
    remaining_ms: Time until training ends or is expected to be disturbed again;
      may be infinity.
  """
  if remaining_ms == math.inf:
    return after_ms < now_ms
  return max(0.0, remaining_ms - pause_ms) / after_ms > remaining_ms / now_ms


def should_reconfigure(
    reasons: Sequence[str],
    *,
    triggers: Triggers,
    now_ms: float,
    after_ms: float,
    pause_ms: float,
    remaining_ms: float,
) -> bool:
  """Returns whether to make new pipelines between two steps.

  Args:
    reasons: What `find_triggers` has found.
    triggers: Whether it must pay, too.
    now_ms: See `is_worth_it`, also for the others.
    after_ms: See there.
    pause_ms: See there.
    remaining_ms: See there.
  """
  if not reasons or not triggers.must_pay:
    return bool(reasons)
  return is_worth_it(
      now_ms=now_ms,
      after_ms=after_ms,
      pause_ms=pause_ms,
      remaining_ms=remaining_ms,
  )
