"""All options of a run, and what does not fit together.

The defaults are those of GPT-2 small on 8 nodes: 2 pipelines of 4 stages. What
"file.py:function" may be, docs/guides/own_training.md tells.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import re
from typing import Any

from bamboo_jax import base
from bamboo_jax.config.section import option, part, Section
from bamboo_jax.metrics import plots

_KEPT = ("full", "dots", "inputs")  # Policies of `models.remat`.
# Why options need executor='rows'.
_ALIKE = "one program for all nodes needs equal pipelines."
_TWO_STAGES = "one program for all needs at least 2."
_PAIRS = "a tick pairs forward and backward passes."
_NO_TIMES = "passes are not measured; take 'report'."


@dataclasses.dataclass(frozen=True)
class ModelSection(Section, path="config.model"):
  """The model to train."""

  name: str = option(
      "gpt2", 'Of `models.zoo`; "init_from": that of the folder; or ' '"file.py:function".'
  )
  options: Mapping[str, Any] = option(
      dict(variant="small", vocab_size=256, sequence_length=1024),
      "Arguments of that model; see its docstring.",
  )
  prng: str = option(
      "threefry2x32",
      'Generator of dropout; or "rbg".',
      choices=("threefry2x32", "rbg", "unsafe_rbg"),
  )


@dataclasses.dataclass(frozen=True)
class DataSection(Section, path="config.data"):
  """The data to train on."""

  name: str = option(
      "stdlib_text", "A source or paths, see docs/guides/data.md; or " '"file.py:function".'
  )
  options: Mapping[str, Any] = option({}, "Arguments of that source; see its docstring.")


@dataclasses.dataclass(frozen=True)
class PipelineSection(Section, path="config.pipeline"):
  """How the work is spread."""

  executor: str = option(
      "rows",
      '"rows": each node runs its own instructions; or "spmd": the passes of a '
      "pipeline are one program, see docs/concepts/engine.md.",
      choices=("rows", "spmd"),
  )
  layout: str = option(
      "depth",
      '"depth": all pipelines have num_stages; or "templates": depths that use '
      'every node; or "grid": the fastest number and depth.',
      choices=("depth", "templates", "grid"),
  )
  segment_ticks: int | None = option(
      None, 'Of "spmd": ticks lost by a death, at most. None: num_stages.', least=1
  )
  num_pipelines: int = option(2, "Copies of the model, over which the batch is cut.", least=1)
  num_stages: int = option(4, "Nodes of a pipeline; 1: every node has the model.", least=1)
  num_microbatches: int = option(
      8, "Per pipeline and step; a batch is num_pipelines x this x microbatch_size.", least=1
  )
  microbatch_size: int = option(
      1, "Samples. BERT's loss depends on it, see docs/guides/models.md.", least=1
  )
  num_shares: int | None = option(
      None, "Parts of the batch that are summed apart. None: num_pipelines.", least=1
  )
  schedule: str = option("1f1b", 'Order of the passes; or "gpipe".', choices=("1f1b", "gpipe"))
  remat: str = option(
      "full",
      'Kept for backward passes: "full" all, "dots" products of matrices, '
      '"inputs" nothing but inputs; or by layer, as in "mlp=inputs".',
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    for entry in self.remat.split(",") if "=" in self.remat else [self.remat]:
      if (kept := entry.partition("=")[2].strip() or entry) not in _KEPT:
        raise ValueError(base.suggest(kept, _KEPT, what="value of config.pipeline.remat"))

  @property
  def total_microbatches(self) -> int:
    """Number of microbatches of a step, in all pipelines together."""
    return self.num_pipelines * self.num_microbatches


@dataclasses.dataclass(frozen=True)
class MeshSection(Section, path="config.node.mesh"):
  """Devices of a node by axis."""

  data: int = option(1, "Over which samples are cut.", least=1)
  tensor: int = option(1, "Over which matrices are cut.", least=1)


@dataclasses.dataclass(frozen=True)
class NodeSection(Section, path="config.node"):
  """The devices of a node; see docs/guides/gpu.md."""

  deterministic: bool = option(True, "Programs repeat their bits; costs time.")
  mesh: MeshSection = part(MeshSection)


@dataclasses.dataclass(frozen=True)
class RedundancySection(Section, path="config.redundancy"):
  """Replicas, and work done ahead for a death."""

  mode: str = option(
      "none",
      '"none": no replicas; "lazy": replicas; "bubble", "budget", "eager": and '
      "redundant forward passes, see docs/concepts/redundancy.md.",
      choices=("none", "lazy", "bubble", "budget", "eager"),
  )
  margin: float = option(0.25, "By which waits must be longer than what fills them.", least=0)
  budget: float = option(0.05, 'Of "budget": by how much a step may be longer.', least=0)
  refresh: str = option(
      "gradient", 'What replicas get each step; or "state".', choices=("gradient", "state")
  )
  slots: str = option(
      "device", 'Where optimizer slots of replicas are; or "host".', choices=("device", "host")
  )
  spares: int = option(0, "Nodes that take the places of lost ones.", least=0)
  check_every_steps: int = option(10, "Compare copies; 0: only after repairs.", least=0)

  @property
  def has_replicas(self) -> bool:
    """Whether stages have shadows."""
    return self.mode != "none"

  @property
  def runs_ahead(self) -> bool:
    """Whether there may be redundant forward passes."""
    return self.mode not in ("none", "lazy")

  @property
  def lengthens(self) -> bool:
    """Whether redundant forward passes may lengthen a step."""
    return self.mode in ("budget", "eager")


@dataclasses.dataclass(frozen=True)
class RecoverySection(Section, path="config.recovery"):
  """What follows a death; see docs/concepts/ladder.md."""

  policy: str | None = option(
      None, "A policy that sets the other options here, or " '"file.py:function"; None: they stay.'
  )
  reroute: bool = option(True, "All with a copy of a lost stage compute its shares.")
  drop: bool = option(False, "Leave out the samples of a lost pipeline.")
  is_preemptible: bool = option(True, "False: faults and traces take no node.")
  reconfigure: bool = option(True, "Make new pipelines from live copies.")
  checkpoint: bool = option(True, "Go back to the last checkpoint if a layer is lost.")
  fold: bool = option(True, "With few nodes, each owns several stages.")
  hand_over: bool = option(True, "Announced preemptions move stages between steps.")
  num_failures: int = option(1, 'Simultaneous deaths that layout "templates" is made for.', least=0)
  method: str = option(
      "replanning",
      'How its pipelines follow the old ones: fewest moves; or by "rules".',
      choices=("replanning", "rules"),
  )
  horizon_secs: float = option(600.0, "New pipelines must pay within this time.", above=0)
  refill: bool = option(True, "Consider new pipelines if spares can take all places.")
  max_doubled: float = option(
      0.05, "Or if twice the nodes with two stages, by all nodes, is above this.", least=0, most=2
  )
  grow: bool = option(True, "Or if there are nodes for one more pipeline.")
  slow: str = option(
      "report",
      'Of a node that others wait for because it is slow: "report" it, or "remove": '
      "it also hands its stages over and leaves.",
      choices=("report", "remove"),
      gone=dict.fromkeys(("deal", "layers"), "'remove', which replaces a slow node, or 'report'"),
  )


@dataclasses.dataclass(frozen=True)
class PlanSection(Section, path="config.plan"):
  """How stages are planned."""

  profile: str | None = option(None, "File of `bamboo profile`; None: costs are estimated.")
  machine: str | None = option(
      None,
      'GPU, as "h100", or instance, as "p5.48xlarge": costs and memory are '
      "those of this machine. None: of the one that plans.",
  )
  memory_limit_gib: float | None = option(
      None, "Per device; None: no limit. Not if `machine` is set.", above=0
  )
  region_latency_ms: float | None = option(
      None, "From one region to another; None: all links are alike.", least=0
  )
  region_mbits: float | None = option(
      None, "Per second, between two regions, for all their nodes together; each way.", above=0
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if (self.region_latency_ms is None) != (self.region_mbits is None):
      raise ValueError(
          "config.plan.region_latency_ms and config.plan.region_mbits must both be set, or "
          f"neither; got {self.region_latency_ms} and {self.region_mbits}."
      )

  @property
  def region_link(self) -> tuple[float, float] | None:
    """Latency in ms and bytes per ms of the link between regions; None: as others."""
    if self.region_latency_ms is None or self.region_mbits is None:
      return None
    return self.region_latency_ms, self.region_mbits * 1e6 / 8 / 1e3


@dataclasses.dataclass(frozen=True)
class OptimizerSection(Section, path="config.optimizer"):
  """How parameters are updated."""

  name: str = option("adamw", 'A function of optax; or "file.py:function".')
  options: Mapping[str, Any] = option(dict(weight_decay=0.1), "Its other arguments.")
  decay: str = option(
      "all", 'Or "matrices": norms and biases do not decay.', choices=("all", "matrices")
  )
  learning_rate: float = option(3e-4, "The peak, if there is a schedule.", least=0)
  schedule: str = option(
      "warmup_cosine_decay_schedule", 'Of optax; or "constant", or "file.py:function".'
  )
  schedule_options: Mapping[str, Any] = option(
      dict(init_value=0.0, warmup_steps=100, decay_steps=None),
      "Arguments of that schedule, see optax. `decay_steps` None: num_steps.",
  )
  clip_norm: float | None = option(1.0, "Global norm of the gradient; None: no clipping.", above=0)
  on_nonfinite: str = option(
      "skip", 'Steps with NaN or inf; or "stop", "apply".', choices=("skip", "stop", "apply")
  )
  most_skipped_steps: int = option(
      20, "Steps skipped in a row that end the run; 0: none do.", least=0
  )


@dataclasses.dataclass(frozen=True)
class EvaluateSection(Section, path="config.evaluate"):
  """Losses of samples that training does not see."""

  every_steps: int = option(100, "0: never.", least=0)
  num_microbatches: int = option(16, "Of held-out samples.", least=1)


@dataclasses.dataclass(frozen=True)
class CheckpointSection(Section, path="config.checkpoint"):
  """When the state is saved."""

  every_steps: int = option(100, "0: only at the end.", least=0)
  keep: int = option(2, "The newest; older ones are removed.", least=1)


@dataclasses.dataclass(frozen=True)
class ClusterSection(Section, path="config.cluster"):
  """Detection of failures among real nodes; see docs/concepts/membership.md."""

  heartbeat_secs: float = option(0.1, "Between two signs of life.", above=0)
  stopped_secs: float = option(
      1.0, "A worker stopped for longer is killed.", least="2 heartbeat_secs"
  )
  least_silence_secs: float = option(
      3.0, "A shorter silence of an agent is no death.", least="2 heartbeat_secs"
  )
  most_silence_secs: float = option(
      10.0, "A longer one is, also of a worker.", least="least_silence_secs"
  )
  silence_factor: float = option(4.0, "In between: times the longest recent gap.", least=1)
  start_silence_secs: float = option(60.0, "Most silence of a worker that starts.", above=0)
  no_progress_secs: float = option(
      60.0, "A worker that hangs for longer is killed; at least 4 recent gaps.", above=0
  )
  gather_secs: float = option(300.0, "Then the run starts, though nodes are missing.", above=0)
  notice_secs: float = option(
      30.0,
      "From a notice to the end of the machine: 30 on Google Cloud and Azure, 120 on AWS.",
      above=0,
  )


@dataclasses.dataclass(frozen=True)
class CostSection(Section, path="config.cost"):
  """What nodes are charged."""

  instance: str | None = option(
      None, "Kind of machine that a node is charged as; None: no dollars."
  )
  market: str = option("spot", 'Or "on_demand".', choices=("spot", "on_demand"))
  prices: str | None = option(None, "File; None: the package's.")
  region: str | None = option(None, "Of the price; None: the only region.")
  date: str | None = option(None, "Of the price; None: the newest.")


@dataclasses.dataclass(frozen=True)
class MetricsSection(Section, path="config.metrics"):
  """What is written about a run."""

  trace_steps: int = option(4, "Last steps to keep in trace.json.", least=0)
  profile_steps: str | None = option(
      None, 'First and last step to trace for XProf: "3:6"; None: none.'
  )
  plots: bool = option(True, "Draw figures at the end.")
  figure_format: str = option("png", 'Or pdf or svg, or several: "png,pdf".')
  logger: str | None = option(
      None,
      "Of csv, tensorboard and wandb, or of the user's own, "
      '"file.py:function"; several with commas. None: no other log.',
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    plots.parse_formats(self.figure_format)
    steps = self.profiled
    if self.profile_steps is not None and not 1 <= steps.start < steps.stop:
      raise ValueError(
          "config.metrics.profile_steps must be the first and the last step, "
          f"such as 3:6, got {self.profile_steps!r}."
      )

  @property
  def profiled(self) -> range:
    """The steps of `profile_steps`, from 1."""
    found = re.fullmatch(r"(\d+):(\d+)", self.profile_steps or "")
    return range(int(found[1]), int(found[2]) + 1) if found else range(0)


# Sections that only simulations have; a run refuses them, see `training.setup.accept`: what the
# simulators of papers have and this runtime does not, and what a run measures or is told
# otherwise: durations, preemptions, throughput.
@dataclasses.dataclass(frozen=True)
class DurationsSection(Section, path="config.study.durations"):
  """Times in seconds; copies of state between nodes are added to them."""

  boot_secs: float = option(45.0, "From the arrival of a node until it can train.", least=0)
  detect_secs: float = option(1.0, "From a loss without notice to the decision on it.", least=0)
  repair_secs: float = option(2.0, "Pause when a spare takes a place.", least=0)
  reconfigure_secs: float = option(10.0, "Pause when new pipelines are formed.", least=0)
  restart_secs: float = option(40.0, "To end and start all processes.", least=0)
  load_secs: float = option(20.0, "To load a checkpoint after that.", least=0)
  save_secs: float = option(30.0, "To save one, while training goes on.", least=0)
  stall_secs: float = option(1.0, "Pause to copy the state for a save.", least=0)
  save_every_secs: float = option(600.0, "Between saves; 0: there are none.", least=0)


@dataclasses.dataclass(frozen=True)
class TraceSection(Section, path="config.study.trace"):
  """A generated trace: preemptions in bulks, and nodes that return."""

  nodes_per_zone: tuple[int, ...] = option(
      (32,), "Nodes requested in each zone, all present at the start.", least=1
  )
  hours: float = option(24.0, "Length.", above=0)
  # At 3600 nodes live for a second; nothing trains.
  hazard_per_node_hour: float = option(0.1, "Preemptions per node and hour.", least=0, most=3600)
  bulk_sizes: tuple[tuple[int, float], ...] = option(
      ((1, 1.0),), "Nodes that a zone loses at an instant, with weights; a smaller one loses all."
  )
  zone_correlation: float = option(
      0.0, "Probability that an instant affects a second zone.", least=0, most=1
  )
  reacquire_secs: float = option(600.0, "Mean time until a lost node is replaced, or inf.")
  notice_secs: float = option(
      0.0, "From notice to preemption, at most a node's age; 0: no notice.", least=0
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    sizes = self.bulk_sizes
    are_pairs = bool(sizes) and all(isinstance(s, Sequence) and len(s) == 2 for s in sizes)
    for name, is_right, allowed in (
        ("nodes_per_zone", self.nodes_per_zone, "a number for each zone"),
        (
            "bulk_sizes",
            are_pairs
            and all(base.fits(size, int) and base.fits(weight, float) for size, weight in sizes)
            and all(size >= 1 and 0 <= weight < math.inf for size, weight in sizes)
            and any(weight for _, weight in sizes),
            "pairs of at least one node and a weight, none below 0, not all 0",
        ),
        (
            "zone_correlation",
            len(self.nodes_per_zone) > 1 or not self.zone_correlation,
            "0 if there is one zone",
        ),
        ("reacquire_secs", self.reacquire_secs >= 0, "at least 0"),
    ):
      if not is_right:
        raise ValueError(f"{self.path}.{name} must be {allowed}, got {getattr(self, name)}.")


@dataclasses.dataclass(frozen=True)
class TableSection(Section, path="config.study.table"):
  """Measured throughput by number of nodes, instead of predicted steps."""

  file: str | None = option(None, "CSV file with columns nodes, or dp and pp; None: no table.")
  column: str = option("samples_per_sec", "Column with the throughput.")
  rows: str | None = option(None, 'Lines that count, as "model=bert"; None: all.')
  samples_per_step: float = option(1024.0, "Samples of a step.", above=0)


@dataclasses.dataclass(frozen=True)
class StudySection(Section, path="config.study"):
  """Only for simulations: the rules of published systems, durations and preemptions."""

  layout: str | None = option(
      None,
      '"liveput": of one depth, that with the highest expected throughput; or of '
      "`sim.register_layout`. None: as pipeline.layout says.",
  )
  overprovision: float = option(1.0, "Stages of a pipeline, times pipeline.num_stages.", above=0)
  max_pipelines: int | None = option(None, 'Of layout "depth"; None: no limit.', least=1)
  depths: tuple[float, ...] = option(
      (0.5, 0.75, 1.0, 1.25, 1.5),
      'Stages that layouts "grid" and "liveput" try, times pipeline.num_stages.',
      above=0,
  )
  uses_all: bool = option(True, 'Layout "templates" uses every node, even if fewer are faster.')
  spread: bool = option(
      True, "At a start neighbours are in different zones, as in a run; else nodes are in order."
  )
  picks_mode: bool = option(False, "Replicas only if the expected throughput is higher with them.")
  charges_replicas: bool = option(
      True, "The memory limit includes replicas, also after any single death, as in a run."
  )
  reroute: str = option(
      "shares",
      'With recovery.reroute: "shares" or "whole_shares" as in runs, or "stage": only owners of '
      "the same stage compute for a lost one.",
      choices=("shares", "whole_shares", "stage"),
  )
  reduction: str = option(
      "ordered",
      'Sums of gradients: "ordered" as in runs; "ring" or "tree".',
      choices=("ordered", "ring", "tree"),
  )
  overlap: str = option(
      "none",
      'Passes beside a sum: "drain": of earlier stages; "backward": also of its own.',
      choices=("none", "drain", "backward"),
  )
  duplex: str = option("half", '"full": nodes send while they receive.', choices=("half", "full"))
  durations: DurationsSection = part(DurationsSection)
  trace: TraceSection = part(TraceSection)
  table: TableSection = part(TableSection)

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.depths:
      raise ValueError("config.study.depths must have an entry, got ().")


@dataclasses.dataclass(frozen=True)
class Config(Section, path="config"):
  """All options of a run; raises `ValueError` if they do not fit together."""

  name: str = option("", "Shown with the run; by default what `--config` names.")
  seed: int = option(0, "Of parameters, order of the data and dropout.", least=0, most=2**63 - 1)
  num_steps: int = option(1_000, "Updates of the whole run.", least=0)
  init_from: str | None = option(
      None, "Folder of weights, see docs/guides/models.md; None: from the seed."
  )
  plugins: tuple[str, ...] = option(
      (), "Modules that register policies; see docs/research/simulator.md."
  )
  model: ModelSection = part(ModelSection)
  data: DataSection = part(DataSection)
  pipeline: PipelineSection = part(PipelineSection)
  node: NodeSection = part(NodeSection)
  redundancy: RedundancySection = part(RedundancySection)
  recovery: RecoverySection = part(RecoverySection)
  plan: PlanSection = part(PlanSection)
  optimizer: OptimizerSection = part(OptimizerSection)
  evaluate: EvaluateSection = part(EvaluateSection)
  checkpoint: CheckpointSection = part(CheckpointSection)
  cluster: ClusterSection = part(ClusterSection)
  cost: CostSection = part(CostSection)
  metrics: MetricsSection = part(MetricsSection)
  study: StudySection = part(StudySection)

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
