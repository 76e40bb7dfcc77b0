"""Plans a step: from the costs of layers to rows, memory and predicted time.

Every pipeline gets the same partition. Nodes are numbered pipeline by pipeline,
so that stage `s` of pipeline `d` is on node `d * num_stages + s`.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax.plan import batch_split
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipeline
from bamboo_jax.plan import step_time as step_time_lib
from bamboo_jax.plan.memory import deaths
from bamboo_jax.plan.memory import needs
from bamboo_jax.plan.memory import upkeep as upkeep_lib
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import timeline as timeline_lib


@dataclasses.dataclass(frozen=True)
class Plan:
  """All that is decided, and predicted, before a step runs.

  The schedule has the rows of the first pipeline, without redundant passes, and
  the timeline those of its instructions.

  Attributes:
    memory: Of each node of a pipeline.
    worst_memory: The node that needs most after any single death, and its
      memory then; None if there are no replicas.
  """

  profile: cost_model.Profile
  partition: partition_lib.Partition
  batch: batch_split.BatchSplit
  schedule_name: str
  balance: str
  memory_limit_bytes: int | None
  costs: costs_lib.StageCosts
  memory: tuple[needs.NodeMemory, ...]
  schedule: instruction_lib.Schedule
  timeline: timeline_lib.Timeline
  step_time: step_time_lib.StepTime
  worst_memory: tuple[deaths.Duty, needs.NodeMemory] | None = None

  def __post_init__(self) -> None:
    if len(self.memory) != self.partition.num_stages:
      raise ValueError(
          f"memory needs an entry for each of the {self.partition.num_stages} "
          f"stages, got {len(self.memory)}."
      )

  @property
  def num_stages(self) -> int:
    """Of a pipeline."""
    return self.partition.num_stages

  @property
  def num_pipelines(self) -> int:
    """Number of pipelines."""
    return self.batch.num_pipelines

  @property
  def owners(self) -> tuple[tuple[int, ...], ...]:
    """For each pipeline, the node of each stage."""
    return tuple(
        tuple(range(d * self.num_stages, (d + 1) * self.num_stages))
        for d in range(self.num_pipelines)
    )

  @property
  def timelines(self) -> tuple[timeline_lib.Timeline, ...]:
    """For each pipeline, when the instructions of its rows run."""
    return tuple(
        self.timeline.renumbered(
            add_nodes=owners[0],
            add_microbatches=self.batch.microbatches(pipeline)[0],
        )
        for pipeline, owners in enumerate(self.owners)
    )

  @property
  def bubble_fraction(self) -> float:
    """Share of the time of `compute` in which nodes wait; mean over nodes."""
    return self.timeline.mean_bubble


def make_plan(
    profile: cost_model.Profile,
    *,
    num_stages: int,
    num_pipelines: int,
    num_microbatches: int,
    microbatch_size: int,
    schedule: str = "1f1b",
    balance: str = "compute",
    memory_limit_bytes: int | None = None,
    num_shares: int | None = None,
    protection: upkeep_lib.Protection | None = None,
    is_remote: bool = False,
    cuts: Sequence[int] | None = None,
) -> Plan:
  """Returns the best plan for nodes that all are like the profiled one.

  Args:
    num_stages: Per pipeline, as are microbatches.
    microbatch_size: In samples; the profile is for such microbatches.
    schedule: "1f1b" or "gpipe".
    balance: "compute" for the fastest slowest stage, "memory" for the smallest
      largest one.
    memory_limit_bytes: Of one device; None does not limit it.
    num_shares: Shares of the global batch, a multiple of `num_pipelines`; by
      default one per pipeline.
    protection: How replicas are held and refreshed; None if there are none. The
      limit then holds for a step, and for the one after any single death.
    is_remote: Whether nodes are processes of their own, or transfers go as if
      they were.
    cuts: Layers at which a stage other than the first may start; by default
      any.

  Raises:
    ValueError: An argument is out of range, or numbers do not divide.
    base.InfeasibleError: No partition fits in `memory_limit_bytes`.
  """
  batch = batch_split.BatchSplit(
      num_pipelines=num_pipelines,
      num_shares=num_pipelines if num_shares is None else num_shares,
      num_microbatches=num_microbatches,
      microbatch_size=microbatch_size,
  )
  first = pipeline.plan_pipeline(
      profile,
      batch,
      num_stages=num_stages,
      schedule=schedule,
      balance=balance,
      memory_limit_bytes=memory_limit_bytes,
      protection=protection,
      is_remote=is_remote,
      cuts=cuts,
  )
  return Plan(
      profile=profile,
      batch=batch,
      schedule_name=schedule,
      balance=balance,
      memory_limit_bytes=memory_limit_bytes,
      **vars(first),
      step_time=step_time_lib.predict_step_time(
          profile,
          first.partition,
          batch,
          compute_ms=first.timeline.span_ms,
          refresh=protection.refresh if protection else None,
      ),
  )
