r"""Measures the costs of the layers of a model on this machine.

bamboo profile --config=quickstart --out=profile.json
bamboo train --config=quickstart \
  --config.plan.profile=profile.json --workdir=runs/profiled

With `--cluster` a cluster on this machine loses a node and gets another; with
several pipelines it also loses one of them and gets another. The file then has
the times of this and of steps; `bamboo validate` reads it. Logs are in a folder
beside it.
"""

import dataclasses
import pathlib
import sys

import tqdm

from bamboo_jax import base
from bamboo_jax.cli import flagset
from bamboo_jax.config import Config
from bamboo_jax.launch import cli, shared


@dataclasses.dataclass(frozen=True)
class ProfileFlags:
  """What to measure."""

  config: Config = cli.config("default", "What to measure.")
  out: str = flagset.flag(None, "JSON file to write.", is_needed=True)
  cluster: bool = flagset.flag(False, "Measure a cluster instead.")
  program_cache: str | None = shared.program_cache()


def main(flags: ProfileFlags) -> None:
  """Measures and writes the profile."""
  cli.check_folder(flags.out)
  if flags.cluster:
    _measure_cluster(flags)
    return
  import jax

  from bamboo_jax.plan import cost_model, render
  from bamboo_jax.runtime import devices as devices_lib
  from bamboo_jax.runtime.profile import profiler
  from bamboo_jax.training.setup import build

  devices_lib.use_virtual_devices(2)  # Two ends of a link.
  task, devices = build.make_task(flags.config), jax.devices()[:2]
  with tqdm.tqdm(total=len(task.whole.names), unit="layer", disable=not sys.stderr.isatty()) as bar:
    profile = profiler.measure(
        task.whole,
        batch=task.batches.microbatch(0, 0),
        devices=devices,
        fingerprint=profiler.fingerprint_of(task.whole, device=devices[0]),
        on_progress=lambda done, _: bar.update(done - bar.n),
    )
  base.write_atomically(flags.out, cost_model.to_json(profile))
  print(f"{render.render_profile(profile)}\nprofile: {flags.out}")


def _measure_cluster(flags: ProfileFlags) -> None:
  from bamboo_jax.experiments import validation
  from bamboo_jax.local_cluster import setup as setup_lib, trial

  config, out = flags.config, pathlib.Path(flags.out)
  setup_lib.check(config, ["a"])
  pipeline = config.pipeline
  run = trial.calibrate(
      flagset.to_argv(flags, "config", "program_cache"),
      workdir=out.with_suffix(""),
      num_nodes=pipeline.num_pipelines * pipeline.num_stages,
      num_pipelines=pipeline.num_pipelines,
  )
  measured = validation.measure(run)
  base.write_atomically(out, measured.to_json())
  print(f"{measured}\ncluster: {out}")


if __name__ == "__main__":
  cli.run(main)
