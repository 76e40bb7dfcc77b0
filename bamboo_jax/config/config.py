"""All options of a run, and what does not fit together.

The defaults are those of GPT-2 small on 8 nodes: 2 pipelines of 4 stages.
"""

import dataclasses

from bamboo_jax.config import study as study_lib, surroundings, work
from bamboo_jax.config.section import option, part, Section

# Why options need executor='rows'.
_ALIKE = "one program for all nodes needs equal pipelines."
_TWO_STAGES = "one program for all needs at least 2."
_PAIRS = "a tick pairs forward and backward passes."
_NO_TIMES = "passes are not measured; take 'report'."


@dataclasses.dataclass(frozen=True)
class Config(Section, path="config"):
  """All options of a run; raises `ValueError` if they do not fit together."""

  name: str = option("", "Shown with the run; by default what `--config` names.")
  seed: int = option(0, "Of parameters, order of the data and dropout.")
  num_steps: int = option(1_000, "Updates of the whole run.", least=0)
  init_from: str | None = option(
      None, "Folder of weights, see docs/guides/models.md; None: from the seed."
  )
  plugins: tuple[str, ...] = option(
      (), "Modules that register policies; see docs/research/simulator.md."
  )
  model: work.ModelSection = part(work.ModelSection)
  data: work.DataSection = part(work.DataSection)
  pipeline: work.PipelineSection = part(work.PipelineSection)
  node: work.NodeSection = part(work.NodeSection)
  redundancy: work.RedundancySection = part(work.RedundancySection)
  recovery: work.RecoverySection = part(work.RecoverySection)
  plan: surroundings.PlanSection = part(surroundings.PlanSection)
  optimizer: surroundings.OptimizerSection = part(surroundings.OptimizerSection)
  evaluate: surroundings.EvaluateSection = part(surroundings.EvaluateSection)
  checkpoint: surroundings.CheckpointSection = part(surroundings.CheckpointSection)
  cluster: surroundings.ClusterSection = part(surroundings.ClusterSection)
  cost: surroundings.CostSection = part(surroundings.CostSection)
  metrics: surroundings.MetricsSection = part(surroundings.MetricsSection)
  study: study_lib.StudySection = part(study_lib.StudySection)

  def __post_init__(self) -> None:
    super().__post_init__()
    mesh, size = self.node.mesh, self.pipeline.microbatch_size
    if size % mesh.data:
      raise ValueError(
          f"config.node.mesh.data={mesh.data} must divide "
          f"config.pipeline.microbatch_size={size}."
      )
    # `bamboo plan` also takes the prices of a machine from the file.
    for name in ("region", "date", *["prices"] * (self.plan.machine is None)):
      if self.cost.instance is None and (value := getattr(self.cost, name)) is not None:
        raise ValueError(
            f"config.cost.{name}={value!r} has no effect without config.cost.instance, such as "
            "p3.2xlarge."
        )
    mode = self.redundancy.mode
    if mode != "none" and self.pipeline.num_stages == 1:
      raise ValueError(
          f"config.redundancy.mode={mode!r} needs at least 2 stages, so that another node can "
          "hold the replica; got config.pipeline.num_stages=1. Set the mode to 'none', or more "
          "stages."
      )
    if self.pipeline.executor == "spmd":
      self._check_program()

  def _check_program(self) -> None:
    """Raises `ValueError` for what one program for all nodes cannot do."""
    pipeline, mesh = self.pipeline, self.node.mesh
    if mesh.data * mesh.tensor > 1:
      raise ValueError("config.node.mesh needs executor='rows'.")
    layout, num_stages, schedule = pipeline.layout, pipeline.num_stages, pipeline.schedule
    model, slow = self.model.name, self.recovery.slow
    for name, value, is_refused, why in (
        ("pipeline.layout", layout, layout != "depth", _ALIKE),
        ("model.name", model, model == "paced", _ALIKE),
        ("pipeline.num_stages", num_stages, num_stages == 1, _TWO_STAGES),
        ("pipeline.schedule", schedule, schedule == "gpipe", _PAIRS),
        ("recovery.slow", slow, slow != "report", _NO_TIMES),
    ):
      if is_refused:
        raise ValueError(f"config.{name}={value!r} needs executor='rows': {why}")
    if pipeline.num_shares not in (None, pipeline.num_pipelines):
      raise ValueError(
          f"config.pipeline.num_shares={pipeline.num_shares} must be "
          f"num_pipelines={pipeline.num_pipelines}, or needs executor='rows': "
          f"{_ALIKE}"
      )
