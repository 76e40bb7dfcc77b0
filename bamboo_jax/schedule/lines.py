"""Lines: the routes of microbatches through the nodes.

Usually a pipeline is one line: each stage has one owner, which computes it for
all microbatches. After a death other nodes that hold a lost stage compute it
for some of them. Node 1 has died, its shadow is 0, and node 5 owns the same
stage in another pipeline:

  pipeline 0  microbatches 0 to 4   0  0  2  3
              microbatches 5 to 7   0  5  2  3
  pipeline 1  microbatches 8 to 15  4  5  6  7

Lines that have nodes in common are scheduled together.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools

from bamboo_jax import base
from bamboo_jax.schedule import holdings as holdings_lib


@dataclasses.dataclass(frozen=True)
class Line:
  """Microbatches that are computed by the same nodes.

  Attributes:
    owners: Node that computes each stage.
    microbatches: Indices in the global batch, in the order of summation.
    in_flight: Maximum number of microbatches whose residuals each stage keeps,
      at least 1. A stage that holds more after a failure runs forward passes
      only for the next backward pass. None: no bound, and forward passes come
      first. The lines of one pipeline share the bound on a node; the next
      microbatch to be summed of each line is exempt.
  """

  owners: Sequence[base.NodeId]
  microbatches: Sequence[int]
  in_flight: Sequence[int] | None = None
  pipeline: int = 0

  def __post_init__(self) -> None:
    for name in ("owners", "microbatches", "in_flight"):
      if getattr(self, name) is not None:
        object.__setattr__(self, name, tuple(getattr(self, name)))
    microbatches, in_flight = self.microbatches, self.in_flight
    if not microbatches or any(a >= b for a, b in itertools.pairwise([-1, *microbatches])):
      raise ValueError(
          "microbatches must be increasing, non-negative integers, got " f"{list(microbatches)}."
      )
    num_stages = len(self.owners)
    if in_flight is not None and (len(in_flight) != num_stages or min(in_flight) < 1):
      raise ValueError(
          f"in_flight must have a bound of at least 1 for each of the "
          f"{num_stages} stages, got {list(in_flight)}."
      )


Holdings = Mapping[base.NodeId, holdings_lib.Holdings]


SCHEDULES = ("1f1b", "gpipe")


def in_flight_limits(num_stages: int, schedule: str = "1f1b") -> tuple[int, ...] | None:
  """Returns the microbatches in flight that a schedule allows on each stage.

  None: any number. `ValueError` for a schedule other than "1f1b" and "gpipe".
  """
  if schedule not in SCHEDULES:
    raise ValueError(base.suggest(schedule, SCHEDULES, what="schedule"))
  return None if schedule == "gpipe" else tuple(range(num_stages, 0, -1))


def in_flight_bounds(
    num_stages: int, num_microbatches: int, schedule: str = "1f1b"
) -> tuple[int, ...]:
  """Returns the most microbatches whose residuals each stage keeps at once."""
  limits = in_flight_limits(num_stages, schedule) or (num_microbatches,) * num_stages
  return tuple(min(limit, num_microbatches) for limit in limits)
