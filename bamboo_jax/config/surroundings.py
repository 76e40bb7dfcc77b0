"""Sections on planning, updates, the cluster, prices and logs.

What "file.py:function" may be, docs/guides/own_training.md tells.
"""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from bamboo_jax.config.section import option, Section
from bamboo_jax.metrics import plots


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
