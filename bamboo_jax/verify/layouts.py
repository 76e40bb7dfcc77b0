"""Random layouts of one config, in all of which the same steps give the same state.

Drawn are pipelines, stages, partition, schedule, how many nodes share a device, and all settings
of redundancy and recovery. Model, data, optimizer, global batch and `num_shares` stay; the state
after some steps depends on nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
import random
from typing import Any

from bamboo_jax import config as config_lib
from bamboo_jax.recovery import shapes

# More nodes share them: the system limits how many programs are loaded.
MAX_DEVICES = 12
_NUM_PIPELINES = (1, 2, 3, 4, 6)
ALONE = {
    **{"pipeline.num_stages": 1, "pipeline.layout": "depth"},
    **{"redundancy.mode": "none", "redundancy.spares": 0},
}
CHOICES: Mapping[str, Sequence[Any]] = {
    "pipeline.layout": ("depth", "templates", "grid"),
    "pipeline.schedule": ("1f1b", "gpipe"),
    "redundancy.mode": ("none", "lazy", "bubble", "budget", "eager"),
    "redundancy.refresh": ("gradient", "state"),
    "redundancy.slots": ("device", "host"),
    "redundancy.spares": (0, 0, 1, 2),
    "redundancy.check_every_steps": (0, 1, 3),
    "recovery.reroute": (True, True, False),
    "recovery.reconfigure": (True, True, False),
    "recovery.checkpoint": (True, False),
    "recovery.fold": (True, False),
    "recovery.hand_over": (True, False),
    "recovery.num_failures": (0, 1, 2),
    "recovery.method": ("replanning", "rules"),
    "recovery.horizon_secs": (5.0, 600.0),
    "recovery.refill": (True, False),
    "recovery.max_doubled": (0.05, 0.5, 1.0),
    "recovery.grow": (True, False),
    "checkpoint.every_steps": (0, 2, 3),
}
# Of clusters of processes.
CLUSTER_SIZE = {"max_stages": 4, "max_nodes": 6}
_OF_CLUSTERS: Mapping[str, Sequence[Any]] = {
    "redundancy.spares": (0, 0, 1),
    "recovery.checkpoint": (True,),  # Who is killed is not chosen with care.
    "checkpoint.every_steps": (3, 5, 10),
}


@dataclasses.dataclass(frozen=True)
class SweepLayout:
  """One way to run the same steps.

  Attributes:
    settings: Of the config, by dotted name, as pairs.
    number: Of a random layout, the seed of its costs and faults too; None: it was given.
    costs_seed: Of the costs that the layers are said to have, from which the partition follows;
      None: those of the config.
    num_devices: That the nodes share; None: one for each, if there are enough.
  """

  settings: tuple[tuple[str, Any], ...] = ()
  number: int | None = None
  costs_seed: int | None = None
  num_devices: int | None = None

  def __str__(self) -> str:
    drawn = dict(seed=self.number, costs_seed=self.costs_seed, num_devices=self.num_devices)
    given = {name: value for name, value in drawn.items() if value is not None}
    return " ".join(f"{k}={v}" for k, v in {**given, **dict(self.settings)}.items())


def split_batch(config: config_lib.Config, num_pipelines: int = 1) -> dict[str, int]:
  """Returns the options with which pipelines share the config's global batch.

  `num_shares` suits all numbers of pipelines in `list_pipelines`.
  """
  pipeline = config.pipeline
  return {
      "pipeline.num_pipelines": num_pipelines,
      "pipeline.num_microbatches": pipeline.total_microbatches // num_pipelines,
      "pipeline.num_shares": pipeline.num_shares or math.lcm(*list_pipelines(config)),
  }


def list_pipelines(config: config_lib.Config) -> list[int]:
  """Returns the numbers of pipelines that can share the config's global batch."""
  pipeline = config.pipeline
  parts = pipeline.num_shares or pipeline.total_microbatches
  return [number for number in _NUM_PIPELINES if parts % number == 0]


def draw_layouts(
    config: config_lib.Config,
    count: int,
    *,
    seed: int,
    max_stages: int,
    max_nodes: int | None = None,
) -> Iterator[SweepLayout]:
  """Yields random layouts of up to so many stages; one depends on its number only.

  With `max_nodes` for clusters of up to so many processes, else for one process.
  """
  choices = CHOICES if max_nodes is None else {**CHOICES, **_OF_CLUSTERS}
  for number in range(seed, seed + count):
    rng = random.Random(f"layouts {number}")
    pipelines = rng.choice(list_pipelines(config))
    stages = rng.randint(1, min(max_stages, (max_nodes or 1000) // pipelines))
    settings = {name: rng.choice(values) for name, values in choices.items()}
    if stages == 1:
      settings["redundancy.mode"] = "none"
    if not settings["recovery.checkpoint"]:
      settings["recovery.reconfigure"] = True  # Or copies would not help.
    failures = settings["recovery.num_failures"]
    if shapes.needed_max_nodes(stages, num_failures=failures) > max_stages:
      settings["pipeline.layout"] = "depth"
    num_devices = rng.choice([None, rng.randint(1, MAX_DEVICES)])
    sizes = {**split_batch(config, pipelines), "pipeline.num_stages": stages}
    yield SweepLayout(
        settings=tuple({**sizes, **settings}.items()),
        number=number,
        costs_seed=rng.randrange(1000),
        num_devices=num_devices,
    )


def without_deaths(config: config_lib.Config, layout: SweepLayout) -> config_lib.Config:
  """Returns a config whose undisturbed run has the state of `layout`.

  For a random layout that is one pipeline of one stage, for all of them the same.
  """
  if layout.number is None:
    config = config.changed(dict(layout.settings))
    # Another mode is another program, which may have other bits.
    mode = config.redundancy.mode if config.pipeline.executor == "spmd" else "none"
    return config.changed({"redundancy.spares": 0, "redundancy.mode": mode})
  return config.changed({**split_batch(config), **ALONE})
