"""Trains the same model in random layouts, whose states must be one.

Drawn are pipelines, stages, partition, schedule, how many nodes share a
device, all settings of redundancy and recovery, and who dies and comes. Model,
data, optimizer, global batch and `num_shares` stay; the state after some steps
depends on nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import gc
import pathlib
import random
import tempfile
import types
from typing import Any

import jax
import ml_collections

from bamboo_jax import base, config as config_lib
from bamboo_jax.checkpoint import digest
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.models import units
from bamboo_jax.plan import cost_model
from bamboo_jax.recovery.oobleck import templates
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.executables import mappings
from bamboo_jax.testing.fault_sweep import cases as cases_lib, storm as storm_lib, trials
from bamboo_jax.train.setup import accept, build, job as job_lib, sizes

NUM_SHARES = 12
NUM_MICROBATCHES = 12  # Of all pipelines.
# More nodes share them: the system limits how many programs are loaded.
MAX_DEVICES = 12
_MANY_MAPPINGS = 20_000
_KINDS = ("kill", "kill", "kill", "node", "notice")
_CHOICES: Mapping[str, Sequence[Any]] = {
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


@dataclasses.dataclass(frozen=True)
class SweepLayout:
  """One way to run the same steps.

  Attributes:
    settings: Of the config, by dotted name, as pairs.
    costs_seed: Of the costs that the layers are said to have, from which the
      partition follows.
    num_devices: That the nodes share; None: one for each.
    faults: That happen.
    storm_seed: Of deaths and joins that are drawn as it runs; None: there are
      none.
  """

  num_pipelines: int
  num_stages: int
  settings: tuple[tuple[str, Any], ...] = ()
  costs_seed: int = 0
  num_devices: int | None = None
  faults: tuple[faults_lib.Fault, ...] = ()
  storm_seed: int | None = None

  def __str__(self) -> str:
    given = {
        "seed": self.storm_seed,
        "pipeline.num_pipelines": self.num_pipelines,
        "pipeline.num_stages": self.num_stages,
        "costs_seed": self.costs_seed,
        "num_devices": self.num_devices or "all",
        **dict(self.settings),
    }
    return " ".join(f"{name}={value}" for name, value in given.items())


def draw_layouts(
    count: int,
    *,
    seed: int,
    max_stages: int,
    max_nodes: int = 1000,
    choices: Mapping[str, Sequence[Any]] = types.MappingProxyType({}),
) -> Iterator[SweepLayout]:
  """Yields random layouts of up to so many stages and nodes.

  `choices` are values of settings, for which there are others by default.
  """
  for number in range(seed, seed + count):
    rng = random.Random(f"layouts {number}")
    pipelines = rng.choice([1, 2, 3, 4, 6])
    stages = rng.randint(1, min(max_stages, max_nodes // pipelines))
    settings = {name: rng.choice(values) for name, values in {**_CHOICES, **choices}.items()}
    if stages == 1:
      settings["redundancy.mode"] = "none"
    if not settings["recovery.checkpoint"]:
      settings["recovery.reconfigure"] = True  # Or copies would not help.
    failures = settings["recovery.num_failures"]
    if templates.needed_max_nodes(stages, num_failures=failures) > max_stages:
      settings["pipeline.layout"] = "depth"
    num_devices = rng.choice([None, rng.randint(1, MAX_DEVICES)])
    yield SweepLayout(
        num_pipelines=pipelines,
        num_stages=stages,
        settings=tuple(settings.items()),
        costs_seed=rng.randrange(1000),
        num_devices=num_devices,
        storm_seed=number,
    )


def _pipelines(count: int) -> dict[str, int]:
  """Returns the options for `count` pipelines that share the same batch."""
  return {"pipeline.num_pipelines": count, "pipeline.num_microbatches": NUM_MICROBATCHES // count}


class Layouts:
  """Runs layouts of one config; they share `cache`, the programs of `whole`.

  A storm has `num_events`; `drawn` are the faults of the last one.
  """

  def __init__(
      self, config: config_lib.Config | ml_collections.ConfigDict, *, num_events: int = 1
  ) -> None:
    self.drawn: Sequence[faults_lib.Fault] = ()
    self._num_events = num_events
    self._config = accept.accept(config).changed(
        {
            "metrics.plots": False,
            "pipeline.num_shares": NUM_SHARES,
            "redundancy.mode": "none",  # Unless a layout says otherwise.
            **_pipelines(1),
        }
    )
    task = build.make_task(self._config)
    self._profile = build.make_profile(self._config, task)
    self.whole = task.whole
    self.cache = program_cache.ProgramCache()

  @property
  def max_stages(self) -> int:
    """How many stages the model can have at most."""
    return 1 + len(units.find_cuts(self.whole.names))

  def draw(self, count: int, *, seed: int) -> Iterator[SweepLayout]:
    """Yields random layouts, of which `seed` is the number of the first."""
    return draw_layouts(count, seed=seed, max_stages=self.max_stages)

  def run(self, layout: SweepLayout) -> str:
    """Returns the hash of the state after some steps in a layout."""
    self.drawn = layout.faults
    if mappings.count() > _MANY_MAPPINGS:  # Too many end the process.
      self.cache.clear()
      jax.clear_caches()
      gc.collect()
    config = self._config.changed(
        {
            **_pipelines(layout.num_pipelines),
            "pipeline.num_stages": layout.num_stages,
            **dict(layout.settings),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder)
      profile = _redraw(self._profile, layout.costs_seed)
      (path / "profile.json").write_text(cost_model.to_json(profile))
      config = config.changed({"plan.profile": str(path / "profile.json")})
      devices = jax.devices()[: layout.num_devices]
      num_nodes = sizes.num_nodes(config) * (2 + self._num_events)
      job = job_lib.make_job(
          config,
          devices={node: devices[node % len(devices)] for node in base.nodes(num_nodes)},
          prepared=trials.prepare(config, self.cache, self.whole),
      )
      return self._train(job, layout, path)

  def _train(self, job: job_lib.Job, layout: SweepLayout, folder: pathlib.Path) -> str:
    storm = None
    if layout.storm_seed is not None:
      goes_back = job.config.recovery.checkpoint
      storm = storm_lib.Storm(
          num_events=self._num_events,
          at_once=2,
          seed=layout.storm_seed,
          kinds=_KINDS + (("all",) if goes_back else ()),
          goes_back=goes_back,
      )
      self.drawn = storm.drawn
    worker = trials.begin(job, storm or layout.faults, folder)
    if storm is not None:
      storm.attach(worker)
    with contextlib.closing(worker._writer):  # It may be saving yet.
      worker.run(stop_at=cases_lib.FIRST_STEP + self._num_events + 1)
    return digest.state_sha256(
        digest.digest_layers(worker.engine.layer_states()),
        job.task.whole.names,
        samples_seen=worker.state.steps,
    )


def _redraw(profile: cost_model.Profile, seed: int) -> cost_model.Profile:
  rng = random.Random(f"costs {seed}")
  layers = [
      dataclasses.replace(layer, forward_ms=rng.uniform(1, 9), backward_ms=rng.uniform(1, 9))
      for layer in profile.layers
  ]
  return dataclasses.replace(profile, layers=tuple(layers))
