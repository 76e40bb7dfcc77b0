"""Time and memory of stages: the input of a schedule from the model."""

from collections.abc import Iterable, Mapping
import dataclasses
import math

from bamboo_jax import base
from bamboo_jax.schedule import instruction as instruction_lib


@dataclasses.dataclass(frozen=True)
class Regions:
  """The regions of nodes, and the slow link between two of them, which all their nodes share.

  Attributes:
    of: Region of each node. Others are near all nodes, as new ones are whose region does
      not count.
    latency_ms: Time of a byte from one region to another.
    bytes_per_ms: Rate from one region to another; as much can go back at the same time.
  """

  of: Mapping[base.NodeId, str] = dataclasses.field(default_factory=dict, hash=False)
  latency_ms: float = 0.0
  bytes_per_ms: float = math.inf

  def names(self, nodes: Iterable[base.NodeId]) -> list[str]:
    """Returns the region of each node, "" if it is not known."""
    return [self.of.get(node, "") for node in nodes]

  def are_several(self, nodes: Iterable[base.NodeId]) -> bool:
    """Returns whether some of the nodes are in different regions."""
    # The first check is for speed: simulations ask for each transfer.
    return bool(self.of) and len({self.of[node] for node in nodes if node in self.of}) > 1

  def transfer_ms(self, num_bytes: float) -> float:
    """Returns the time from one region to another, if nothing else is sent."""
    return self.latency_ms + num_bytes / self.bytes_per_ms


ALIKE = Regions()  # All links are.


@dataclasses.dataclass(frozen=True)
class StageCosts:
  """Time and memory of each stage, for one microbatch.

  All but `transfer_ms` have one entry per stage; schedules need no sizes. A
  gradient with respect to an output has the size of that output.

  Attributes:
    transfer_ms: Time from stage `s` to stage `s + 1` or back, one entry per
      boundary.
    activation_bytes: Size of the output.
    residual_bytes: Size of the residuals, the input included.
    redundant_ms: Time of a redundant forward pass; `forward_ms` if not given.
    regions: Between which transfers take longer.
  """

  forward_ms: tuple[float, ...]
  backward_ms: tuple[float, ...]
  transfer_ms: tuple[float, ...]
  activation_bytes: tuple[int, ...] = ()
  residual_bytes: tuple[int, ...] = ()
  redundant_ms: tuple[float, ...] = ()
  regions: Regions = ALIKE

  def __post_init__(self) -> None:
    object.__setattr__(self, "redundant_ms", self.redundant_ms or self.forward_ms)

  def time_ms(self, i: instruction_lib.Instruction | instruction_lib.Transfer) -> float:
    """Returns the time of a pass, or from a send to its receive."""
    if isinstance(i, instruction_lib.Transfer):
      ms = self.transfer_ms[i.stage]
      if self.regions.are_several((i.source, i.destination)):
        ms += self.regions.transfer_ms(self.activation_bytes[i.stage])
      return ms
    times_ms = self.forward_ms
    if i.op is instruction_lib.Op.BACKWARD:
      times_ms = self.backward_ms
    elif i.op is instruction_lib.Op.REDUNDANT_FORWARD:
      times_ms = self.redundant_ms
    return times_ms[i.stage]
