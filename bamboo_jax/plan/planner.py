"""Plans a step: from the costs of layers to rows, memory and predicted time.

Every pipeline gets the same partition. Nodes are numbered pipeline by pipeline,
so that stage `s` of pipeline `d` is on node `d * num_stages + s`.
"""

import dataclasses

from bamboo_jax.plan import batch_split
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import memory as memory_lib
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import stages
from bamboo_jax.plan import step_time as step_time_lib
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline as timeline_lib


@dataclasses.dataclass(frozen=True)
class Plan:
  """Everything that is decided, and predicted, before a step runs.

  Attributes:
    profile: Costs of the layers, what the plan was made from.
    partition: Which stage owns which layers.
    batch: Which pipeline computes which microbatches.
    schedule_name: "1f1b" or "gpipe".
    balance: "compute" or "memory".
    memory_limit_bytes: Memory of one device, or None if it was not limited.
    costs: Costs of the stages.
    memory: What each stage needs on its device.
    owners: For each pipeline, the node of each stage.
    schedules: For each pipeline, the rows of its nodes.
    timelines: For each pipeline, when the instructions of the rows run.
    step_time: How long a step takes.
  """

  profile: cost_model.Profile
  partition: partition_lib.Partition
  batch: batch_split.BatchSplit
  schedule_name: str
  balance: str
  memory_limit_bytes: int | None
  costs: costs_lib.StageCosts
  memory: tuple[memory_lib.StageMemory, ...]
  owners: tuple[tuple[int, ...], ...]
  schedules: tuple[scheduler.Schedule, ...]
  timelines: tuple[timeline_lib.Timeline, ...]
  step_time: step_time_lib.StepTime

  def __post_init__(self) -> None:
    for name in ("owners", "schedules", "timelines"):
      if len(getattr(self, name)) != self.batch.num_pipelines:
        raise ValueError(
            f"{name} needs an entry for each of the {self.batch.num_pipelines} "
            f"pipelines, got {len(getattr(self, name))}."
        )
    if len(self.memory) != self.partition.num_stages:
      raise ValueError(
          f"memory needs an entry for each of the {self.partition.num_stages} "
          f"stages, got {len(self.memory)}."
      )

  @property
  def num_stages(self) -> int:
    """Number of stages of a pipeline."""
    return self.partition.num_stages

  @property
  def num_pipelines(self) -> int:
    """Number of pipelines."""
    return self.batch.num_pipelines

  @property
  def bubble_fraction(self) -> float:
    """Share of the nodes' time in the pipelines in which they wait."""
    bubbles = [timeline.mean_bubble for timeline in self.timelines]
    return sum(bubbles) / len(bubbles)
