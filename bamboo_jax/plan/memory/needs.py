"""Device memory of a node, by purpose and by phase of the step.

  purpose                  compute  reduce  refresh  apply
  parameters, slots           x        x       x       x    of its stages
  replicas, buffers           x        x       x       x    permanent
  accumulators                x        x       x       x    until the next step
  residuals, transfers        x                             while rows run
  cast weights                x                             while rows run
  sums                                 x       x       x    over all shares
  received                                     x       x    for replicas
  slots from the host                                  x    of one replica
  working memory of           passes   sums    links

So the peak is that of the worst phase, not the sum of all. `compute` includes
the start of the phases; norms and the vote need negligible memory.
"""

from collections.abc import Sequence
import dataclasses


@dataclasses.dataclass(frozen=True)
class NodeMemory:
  """Bytes on the device of a node.

  Attributes:
    parameter_bytes: Parameters of the stages that it owns.
    slot_bytes: Optimizer slots of these stages.
    replica_bytes: Parameters of replicas, and their slots if on the device.
    buffer_bytes: Buffers of links from other processes.
    accumulator_bytes: Gradient accumulators, one per share.
    copy_bytes: Weights that are cast for passes; those of a replica too if
      there are redundant forward passes.
    residual_bytes: Residuals of all microbatches in flight.
    transfer_bytes: Arrays in flight to or from a neighbour: on either side one
      activation and one gradient, more only if rows queue them.
    working_bytes: Temporary memory of the largest program in rows.
    sum_bytes: Sums over all shares, and gradients of tied parameters.
    received_bytes: Data received for replicas; also the next state of the own
      stages if the state is sent.
    fetched_bytes: Slots of a replica fetched from host memory for the update.
    sum_working_bytes: Temporary memory of a sum over shares.
    link_working_bytes: Temporary memory of links between processes in the
      refresh.
  """

  parameter_bytes: int = 0
  slot_bytes: int = 0
  replica_bytes: int = 0
  buffer_bytes: int = 0
  accumulator_bytes: int = 0
  copy_bytes: int = 0
  residual_bytes: int = 0
  transfer_bytes: int = 0
  working_bytes: int = 0
  sum_bytes: int = 0
  received_bytes: int = 0
  fetched_bytes: int = 0
  sum_working_bytes: int = 0
  link_working_bytes: int = 0

  @property
  def resident_bytes(self) -> int:
    """Memory between two steps, and the accumulators."""
    return (
        self.parameter_bytes
        + self.slot_bytes
        + self.replica_bytes
        + self.buffer_bytes
        + self.accumulator_bytes
    )

  @property
  def phases(self) -> dict[str, int]:
    """The peak of each phase of the step."""
    summed = self.resident_bytes + self.sum_bytes
    refreshed = summed + self.received_bytes
    passes = self.residual_bytes + self.transfer_bytes + self.working_bytes
    return {
        "compute": self.resident_bytes + self.copy_bytes + passes,
        "reduce": summed + self.sum_working_bytes,
        "refresh": refreshed + self.link_working_bytes,
        "apply": refreshed + self.fetched_bytes,
    }

  @property
  def total_bytes(self) -> int:
    """The peak of the step."""
    return max(self.phases.values())


# Several programs of a node run one after the other, several replicas are
# updated one after the other.
_LARGEST = ("working_bytes", "fetched_bytes", "sum_working_bytes", "link_working_bytes")


def add(parts: Sequence[NodeMemory]) -> NodeMemory:
  """Returns the memory of a node with several stages and replicas."""
  return NodeMemory(
      **{
          f.name: (max if f.name in _LARGEST else sum)([getattr(part, f.name) for part in parts])
          for f in dataclasses.fields(NodeMemory)
      }
  )


def format_mib(num_bytes: int) -> str:
  """Returns MiB with one digit, rounded up, so that only 0 prints as 0.0."""
  return f"{-(-10 * num_bytes // 2**20) / 10:.1f}"


def format_size(num_bytes: int) -> str:
  """Returns GiB from 8 GiB on, else MiB, rounded up to one digit."""
  if num_bytes >= 8 * 2**30:
    return f"{-(-10 * num_bytes // 2**30) / 10:.1f} GiB"
  return f"{format_mib(num_bytes)} MiB"
