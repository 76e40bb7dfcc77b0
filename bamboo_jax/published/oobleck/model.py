"""What Oobleck's evaluation knows of a model: throughput and latencies."""

from collections.abc import Mapping
import dataclasses

SYSTEMS = ("oobleck", "varuna", "bamboo")
NUM_STAGES = 12
MIN_NODES, MAX_NODES = 15, 30  # The throughput is known in between.

_STUCK_MS = 10**12  # Step time where the throughput is 0.


def clip(num_nodes: int) -> int:
  """Returns the number of nodes whose figures are used for `num_nodes`."""
  return min(max(num_nodes, MIN_NODES), MAX_NODES)


@dataclasses.dataclass(frozen=True)
class Model:
  """The evaluation's facts about a model.

  Attributes:
    throughput: Samples per second by system, then by number of nodes. A system
      that could not run the model is not there.
    idle_gpus: GPUs that Varuna leaves idle, by number of nodes.
    reconfigure_ms: How long nodes gather, Oobleck.
    restart_ms: How long a restart takes, Varuna, checkpoint included.
    restart_ms_by_nodes: After the first restart, if it depends on their number.
    checkpoint_ms: Time of a checkpoint, Varuna.
    local_ms: How long nodes gather at the end of a step, Bamboo.
  """

  name: str
  samples_per_step: int
  throughput: Mapping[str, Mapping[int, float]]
  idle_gpus: Mapping[int, int]
  reconfigure_ms: int
  restart_ms: int
  restart_ms_by_nodes: Mapping[int, int] | None
  checkpoint_ms: int
  local_ms: int

  def step_ms(self, system: str, num_nodes: int) -> int:
    """Returns the time of a step of `system` with `num_nodes` ready."""
    samples_per_sec = self.throughput[system][clip(num_nodes)]
    if not samples_per_sec:
      return _STUCK_MS
    return int(self.samples_per_step / samples_per_sec * 1000)
