"""Parameters of a generated trace.

The command line has them as options of `bamboo trace generate`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

from bamboo_jax.traces import trace as trace_lib

_MAX_HAZARD = 3600  # Nodes live for a second; nothing trains.


@dataclasses.dataclass(frozen=True)
class Parameters:
  """Preemptions in bulks, and nodes that return.

  Attributes:
    nodes_per_zone: Nodes requested in each zone, all present at the start.
      Zones are "zone0" and on; a single zone has no name.
    hazard_per_node_hour: Preemptions per node and hour.
    bulk_sizes: Pairs (nodes that a zone loses at an instant, weight); a smaller
      zone loses all.
    zone_correlation: Probability that an instant affects a second zone.
    reacquire_secs: Mean time until a lost node is replaced, or infinity.
    notice_secs: From notice to preemption, at most a node's age; 0: no notice.
  """

  nodes_per_zone: tuple[int, ...] = (32,)
  hours: float = 24.0
  hazard_per_node_hour: float = 0.1
  bulk_sizes: tuple[tuple[int, float], ...] = ((1, 1.0),)
  zone_correlation: float = 0.0
  reacquire_secs: float = 600.0
  notice_secs: float = 0.0

  def __post_init__(self) -> None:
    self._check(
        "nodes_per_zone",
        self.nodes_per_zone and all(1 <= n <= trace_lib.MAX_LIVE for n in self.nodes_per_zone),
        f"a number from 1 to {trace_lib.MAX_LIVE} for each zone",
    )
    most = trace_lib.MAX_MS / trace_lib.MS_PER_HOUR
    self._check("hours", 0 < self.hours <= most, f"above 0, up to {most:g}")
    self._check(
        "bulk_sizes",
        _are_pairs(self.bulk_sizes)
        and _are_weights([weight for _, weight in self.bulk_sizes])
        and min(size for size, _ in self.bulk_sizes) >= 1,
        "pairs of at least one node and a weight, none below 0, not all 0",
    )
    self._check(
        "zone_correlation",
        0 <= self.zone_correlation <= (len(self.nodes_per_zone) > 1),
        "from 0 to 1, and 0 if there is one zone",
    )
    self._check("reacquire_secs", self.reacquire_secs >= 0, "at least 0")
    hazard = self.hazard_per_node_hour
    is_right = 0 <= hazard <= _MAX_HAZARD
    self._check("hazard_per_node_hour", is_right, f"from 0 to {_MAX_HAZARD}")
    is_right = 0 <= self.notice_secs < math.inf
    self._check("notice_secs", is_right, "finite and at least 0")

  def _check(self, name: str, is_right: object, allowed: str) -> None:
    if not is_right:
      raise ValueError(f"{name} must be {allowed}, got {getattr(self, name)}.")


def _are_pairs(entries: Sequence[Sequence[float]]) -> bool:
  return all(isinstance(e, Sequence) and len(e) == 2 for e in entries)


def _are_weights(weights: Sequence[float]) -> bool:
  return all(0 <= w < math.inf for w in weights) and sum(weights) > 0


def parse_options(given: Mapping[str, Sequence[str] | float]) -> Parameters:
  """Returns the parameters of options, lists as texts.

  Raises `ValueError` if a list has entries of another type.
  """
  read: dict[str, Any] = dict(given)
  for name, entry, example in (("nodes_per_zone", int, "32"), ("bulk_sizes", _weighted, "1:1")):
    try:
      read[name] = tuple(map(entry, read[name]))
    except ValueError:
      raise ValueError(f"--{name} must be like {example}, got {','.join(read[name])!r}.") from None
  return Parameters(**read)


def _weighted(text: str) -> tuple[int, float]:
  size, weight = text.split(":")
  return int(size), float(weight)
