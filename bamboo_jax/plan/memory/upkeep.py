"""Accumulators and replicas that a node keeps besides its stage."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Protection:
  """How replicas are held and refreshed; values as in `config.redundancy`.

  Attributes:
    refresh: The data sent to replicas in each step: "gradient" or "state".
    slots: Memory of their optimizer slots between steps: "device" or "host".
    runs_ahead: Whether there may be redundant forward passes.
  """

  refresh: str = "gradient"
  slots: str = "device"
  runs_ahead: bool = True


@dataclasses.dataclass(frozen=True)
class Upkeep:
  """The memory that a node keeps besides its stage.

  Attributes:
    num_accumulators: Sums of gradients, one for each share of its pipeline.
    num_rerouted: Shares of a pipeline that has lost a stage, which other owners
      of that stage compute; 0 if none do.
    num_shares: Shares of the batch; several are summed into another array.
    protection: Options of replicas; None without.
    is_remote: Whether transfers are between processes, with a buffer at the
      receiving end; else they are copies within one.
  """

  num_accumulators: int = 1
  num_rerouted: int = 0
  num_shares: int = 1
  protection: Protection | None = None
  is_remote: bool = False


# For published systems, which sum during backward passes: the sum is in memory
# while rows run. One share per pipeline, without replicas.
OVERLAPPED = Upkeep(num_accumulators=2)
