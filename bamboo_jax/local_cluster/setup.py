"""The parts of a run on this machine, checked before anything starts."""

from collections.abc import Sequence
import dataclasses
import pathlib

import ml_collections

from bamboo_jax.cluster import detection
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.traces import replay as trace_replay
from bamboo_jax.traces import trace as trace_lib
from bamboo_jax.train.setup import sizes


@dataclasses.dataclass(frozen=True)
class Setup:
  """The parts of a run on this machine.

  Attributes:
    arguments: Of every agent.
    zones: Given out in turn to nodes that come without one.
    etcd: Host and port; None starts an etcd.
    faults: Events by step.
    replay: Events by time from the first step on.
    gpus: Of this machine, given out in turn.
  """

  workdir: pathlib.Path
  arguments: Sequence[str]
  first_zones: Sequence[str]
  zones: Sequence[str]
  slots: int
  etcd: str | None
  run: str
  faults: Sequence[faults_lib.Fault] = ()
  replay: trace_replay.Replay | None = None
  gpus: Sequence[str] = ()


def check(config: ml_collections.ConfigDict, zones: Sequence[str]) -> None:
  """Raises `ValueError` if there can be no cluster of this kind."""
  detection.Limits(**config.cluster)  # Checks them.
  if not all(zones) or not zones:
    raise ValueError(
        f"--zones must be names such as a,b,c, got {','.join(zones)!r}."
    )


def find_first_zones(
    config: ml_collections.ConfigDict,
    num_nodes: int | None,
    zones: Sequence[str],
    replay: trace_replay.Replay | None,
) -> list[str]:
  """Returns the zone of each node to begin with."""
  pipeline = config.pipeline
  needed = pipeline.num_pipelines * pipeline.num_stages
  if replay is None:
    named = [""] * (num_nodes or sizes.num_nodes(config))
    given = f"--nodes={len(named)}"
  else:
    named = list(map(trace_lib.zone_of, replay.first))
    given = f"a trace that starts with {len(named)}"
  if len(named) < needed:
    raise ValueError(
        f"{pipeline.num_pipelines} pipelines of {pipeline.num_stages} stages "
        f"need at least {needed} nodes, got {given}."
    )
  return [zone or zones[i % len(zones)] for i, zone in enumerate(named)]
