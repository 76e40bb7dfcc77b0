"""By how much a node is slow, and until when; written as in files of faults."""

import dataclasses
import math
import re

KIND = "slow"


@dataclasses.dataclass(frozen=True)
class SlowNode:
  """A node whose passes take longer; `ValueError` if a value is out of range.

  Attributes:
    factor: How many times as long they take, above 1.
    until: The step in which they take their usual time again; None: never.
  """

  factor: float = 5.0
  until: int | None = None

  def __post_init__(self) -> None:
    if not 1 < self.factor < math.inf:
      raise ValueError(f"The factor of slow must be above 1, got {self.factor}.")

  def __str__(self) -> str:
    until = "" if self.until is None else f":{self.until}"
    return f"{KIND}:{self.factor:g}{until}"


def parse(text: str) -> SlowNode:
  """Parses `slow`, `slow:FACTOR` or `slow:FACTOR:STEP`; see `SlowNode`."""
  found = re.fullmatch(rf"{KIND}(?::(\d+\.?\d*)(?::(\d+))?)?", text)
  if not found:
    raise ValueError(
        "slow is written slow, slow:FACTOR or slow:FACTOR:STEP, such as "
        f"slow:5:20, got {text!r}."
    )
  factor, until = found.groups()
  return SlowNode(
      SlowNode.factor if factor is None else float(factor), None if until is None else int(until)
  )
