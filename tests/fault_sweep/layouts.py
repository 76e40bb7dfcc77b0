"""Trains the same model in random layouts, whose states must be one.

Drawn are pipelines, stages, partition, schedule, links, redundancy, spares, how
many nodes share a device, and whether a node dies. Model, data, optimizer,
global batch and `num_shares` stay; the state after some steps depends on
nothing else.
"""

from collections.abc import Iterator
import copy
import dataclasses
import pathlib
import random
import tempfile

import jax
import ml_collections

from bamboo_jax.base import types
from bamboo_jax.checkpoint import digest
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.models import units
from bamboo_jax.plan import cost_model
from bamboo_jax.recovery.oobleck import templates
from bamboo_jax.runtime import program_cache
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import job as job_lib
from tests.fault_sweep import cases as cases_lib
from tests.fault_sweep import trials

_NUM_SHARES = 6
_NUM_MICROBATCHES = 12  # Of all pipelines.
_NUM_STEPS = cases_lib.FIRST_STEP + 2
MAX_DEVICES = 40  # For the largest layout, with those who come later.


@dataclasses.dataclass(frozen=True)
class Layout:
  """One way to run the same steps.

  Attributes:
    costs_seed: Of the costs that the layers are said to have, from which the
      partition follows.
    num_devices: That the nodes share; None: one for each.
    layout: "depth" for equal pipelines; with "templates" spares make some
      pipelines deeper, or one more.
    death: Where a node dies, and when; None: none does.
  """

  num_pipelines: int
  num_stages: int
  schedule: str = "1f1b"
  link: str = "auto"
  mode: str = "none"
  spares: int = 0
  costs_seed: int = 0
  num_devices: int | None = None
  layout: str = "depth"
  death: faults_lib.Fault | None = None

  def __str__(self) -> str:
    fields = dataclasses.asdict(self) | {"death": self.death}
    return " ".join(f"{k}={v}" for k, v in fields.items() if v is not None)


def draw_layouts(count: int, *, seed: int, max_stages: int) -> Iterator[Layout]:
  """Yields random layouts of up to `max_stages` stages."""
  rng = random.Random(f"layouts {seed}")
  for _ in range(count):
    num_pipelines = rng.choice([1, 2, 3, 6])
    num_stages = rng.randint(1, max_stages)
    modes = ["none", "lazy", "bubble", "eager"] if num_stages > 1 else ["none"]
    layout = Layout(
        num_pipelines=num_pipelines,
        num_stages=num_stages,
        schedule=rng.choice(["1f1b", "gpipe"]),
        link=rng.choice(["auto", "ppermute"]),
        mode=rng.choice(modes),
        spares=rng.randint(0, 1),
        costs_seed=rng.randrange(1000),
        layout=rng.choice(["depth", "templates"]),
    )
    if templates.needed_max_nodes(num_stages, num_failures=1) > max_stages:
      layout = dataclasses.replace(layout, layout="depth")
    if layout.link == "auto":
      num_nodes = num_pipelines * num_stages
      num_devices = rng.choice([None, rng.randint(1, num_nodes)])
      layout = dataclasses.replace(layout, num_devices=num_devices)
    if layout.mode != "none" and rng.random() < 0.5:
      layout = dataclasses.replace(layout, death=_draw_death(layout, rng))
    yield layout


class Layouts:
  """Runs layouts of one config; they share `cache`, the programs of `whole`."""

  def __init__(self, config: ml_collections.ConfigDict) -> None:
    self._config = copy.deepcopy(config)
    self._config.metrics.plots = False
    self._config.pipeline.num_shares = _NUM_SHARES
    self._set_pipelines(self._config, 1)
    task = build.make_task(self._config)
    self._profile = build.make_profile(self._config, task)
    self.whole = task.whole
    self.cache = program_cache.ProgramCache()

  @property
  def max_stages(self) -> int:
    """How many stages the model can have at most."""
    return 1 + len(units.find_cuts(self.whole.names, self.whole.unit))

  def run(self, layout: Layout) -> str:
    """Returns the hash of the state after some steps in a layout."""
    config = copy.deepcopy(self._config)
    self._set_pipelines(config, layout.num_pipelines)
    config.pipeline.num_stages = layout.num_stages
    config.pipeline.layout = layout.layout
    config.pipeline.schedule = layout.schedule
    config.pipeline.link = layout.link
    config.redundancy.mode = layout.mode
    config.redundancy.spares = layout.spares
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder)
      profile = _redraw(self._profile, layout.costs_seed)
      (path / "profile.json").write_text(cost_model.to_json(profile))
      config.plan.profile = str(path / "profile.json")
      devices = jax.devices()[: layout.num_devices]
      job = job_lib.make_job(
          config,
          devices={
              node: devices[node % len(devices)]
              for node in range(2 * build.num_nodes(config))  # Later ones, too.
          },
          cache=self.cache,
          whole=self.whole,
      )
      return self._train(job, layout, path)

  def _train(
      self, job: job_lib.Job, layout: Layout, folder: pathlib.Path
  ) -> str:
    faults = (layout.death,) if layout.death else ()
    worker = trials.begin(job, faults, folder)
    worker.run(stop_at=_NUM_STEPS)
    return digest.state_sha256(
        digest.digest_layers(worker.engine.layer_states()),
        job.task.layer_names,
        samples_seen=worker.state.steps,
    )

  @staticmethod
  def _set_pipelines(
      config: ml_collections.ConfigDict, num_pipelines: int
  ) -> None:
    config.pipeline.num_pipelines = num_pipelines
    config.pipeline.num_microbatches = _NUM_MICROBATCHES // num_pipelines


def _draw_death(layout: Layout, rng: random.Random) -> faults_lib.Fault:
  place = types.Place(
      rng.randrange(layout.num_pipelines), rng.randrange(layout.num_stages)
  )
  at = rng.choice([rng.randint(0, 12), rng.choice(faults_lib.PHASES)])
  return faults_lib.Fault(cases_lib.FIRST_STEP, str(place), at)


def _redraw(profile: cost_model.Profile, seed: int) -> cost_model.Profile:
  rng = random.Random(f"costs {seed}")
  layers = [
      dataclasses.replace(
          layer, forward_ms=rng.uniform(1, 9), backward_ms=rng.uniform(1, 9)
      )
      for layer in profile.layers
  ]
  return dataclasses.replace(profile, layers=tuple(layers))
