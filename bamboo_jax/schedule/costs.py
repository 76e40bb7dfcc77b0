"""Time and memory of stages: the input of a schedule from the model."""

import dataclasses

from bamboo_jax.schedule import instruction as instruction_lib


@dataclasses.dataclass(frozen=True)
class StageCosts:
  """Time and memory of each stage, for one microbatch.

  All but `transfer_ms` have one entry per stage; sizes default to 0. A gradient
  with respect to an output has the size of that output.

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
    stages = len(self.forward_ms)
    for name in ("activation_bytes", "residual_bytes"):
      if not getattr(self, name):
        object.__setattr__(self, name, (0,) * stages)
    if not self.redundant_ms:
      object.__setattr__(self, "redundant_ms", self.forward_ms)
    for field in dataclasses.fields(self):
      values = getattr(self, field.name)
      wanted = stages - 1 if field.name == "transfer_ms" else stages
      if stages < 1 or len(values) != wanted:
        raise ValueError(
            f"{field.name} must have {wanted} entries for {stages} stages, got " f"{values}."
        )
      if any(value < 0 for value in values):
        raise ValueError(f"{field.name} must not be negative, got {values}.")

  @property
  def num_stages(self) -> int:
    """Number of stages."""
    return len(self.forward_ms)

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
