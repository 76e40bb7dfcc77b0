"""Sections on what is trained, how it is spread, and what follows a death.

What "file.py:function" may be, docs/guides/own_training.md tells.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.config.section import option, part, Section

_KEPT = ("full", "dots", "inputs")  # Policies of `models.remat`.


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
