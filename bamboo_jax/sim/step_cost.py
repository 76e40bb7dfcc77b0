"""What a step costs: its time, its samples, and what its nodes do."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class StepCost:
  """A step of given pipelines, with the samples it trains on and leaves out.

  The shares of the time of the nodes that train are those of `accounting`; what
  is left is the bubble.
  """

  secs: float
  num_samples: float
  num_dropped: float = 0.0
  useful: float = 1.0
  redundant: float = 0.0
  communication: float = 0.0

  def __post_init__(self) -> None:
    if not self.secs > 0:
      raise ValueError(f"A step takes time, got secs={self.secs}.")
    shares = self.useful, self.redundant, self.communication
    if min(*shares, 1 + 1e-9 - self.used) < 0:
      raise ValueError(f"Shares must be from 0 to 1 together, got {self}.")

  @property
  def used(self) -> float:
    """Share of the time of the nodes that train in which they work."""
    return self.useful + self.redundant + self.communication

  def shares(self) -> dict[str, float]:
    """Returns the share of each kind; they add up to 1."""
    return {
        "useful": self.useful,
        "communication": self.communication,
        "redundant": self.redundant,
        "bubble": max(0.0, 1.0 - self.used),
    }
