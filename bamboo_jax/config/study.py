"""Sections that only simulations have; a run refuses them, see `training.setup.accept`.

What the simulators of papers have and this runtime does not, and what a run measures
or is told otherwise: durations, preemptions, throughput.
"""

from collections.abc import Sequence
import dataclasses
import math

from bamboo_jax import base
from bamboo_jax.config.section import option, part, Section


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
