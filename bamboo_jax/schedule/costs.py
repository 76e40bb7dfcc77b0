"""Time and memory of stages: the input of a schedule from the model."""

from collections.abc import Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.schedule import instruction as instruction_lib


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
  """

  forward_ms: tuple[float, ...]
  backward_ms: tuple[float, ...]
  transfer_ms: tuple[float, ...]
  activation_bytes: tuple[int, ...] = ()
  residual_bytes: tuple[int, ...] = ()
  redundant_ms: tuple[float, ...] = ()

  def __post_init__(self) -> None:
    object.__setattr__(self, "redundant_ms", self.redundant_ms or self.forward_ms)

  def pass_ms(self, pass_: instruction_lib.Instruction) -> float:
    """Returns the time of a forward, redundant forward or backward pass."""
    times_ms = self.forward_ms
    if pass_.op is instruction_lib.Op.BACKWARD:
      times_ms = self.backward_ms
    elif pass_.op is instruction_lib.Op.REDUNDANT_FORWARD:
      times_ms = self.redundant_ms
    return times_ms[pass_.stage]

  def time_ms(self, i: instruction_lib.Instruction) -> float:
    """Returns the time of a pass, or from a send to its receive."""
    return self.transfer_ms[i.stage] if i.is_transfer else self.pass_ms(i)

  def busy_ms(self, owners: Sequence[base.NodeId]) -> dict[base.NodeId, float]:
    """Returns the time of the passes of a microbatch, by node; `owners` is that of each stage."""
    busy: dict[base.NodeId, float] = {}
    for node, *passes_ms in zip(owners, self.forward_ms, self.backward_ms, strict=True):
      busy[node] = busy.get(node, 0.0) + sum(passes_ms)
    return busy

  def place_residuals(
      self,
      host_bytes_per_ms: float | None,
      *,
      num_microbatches: int,
      free_bytes: Sequence[int] | None,
  ) -> tuple["StageCosts", str]:
    """Returns costs of redundant passes, and where their residuals wait for a failover.

    They stay on the "device" if those of a whole step fit in its memory; else they
    are copied to the "host". Node `s` is the shadow of stage `s + 1`, the last node
    that of stage 0.

    Args:
      host_bytes_per_ms: Rate of the link to host memory; None: costs have the
        copies already.
      free_bytes: Device memory that each node does not need; None: no limit.
    """
    if host_bytes_per_ms is None:
      return self, "host"
    sizes, redundant_ms = self.residual_bytes, self.forward_ms
    fits = free_bytes is None or all(
        num_microbatches * size <= free
        for size, free in zip(sizes[1:] + sizes[:1], free_bytes, strict=True)
    )
    if not fits:
      pairs = zip(self.forward_ms, sizes, strict=True)
      redundant_ms = tuple(ms + size / host_bytes_per_ms for ms, size in pairs)
    costs = dataclasses.replace(self, redundant_ms=redundant_ms)
    return costs, "device" if fits else "host"
