r"""Measures the costs of the layers of a model on this machine.

bamboo profile --config=quickstart --out=profile.json
bamboo train --config=quickstart \
  --config.plan.profile=profile.json --workdir=runs/profiled

With `--cluster` a cluster on this machine loses a node and gets another; with
several pipelines it also loses one of them and gets another. The file then has
the times of this and of steps; `bamboo validate` reads it. Logs are in a folder
beside it.
"""

import pathlib
import sys

from absl import flags
import tqdm

from bamboo_jax import base
from bamboo_jax.launch import cli, config_flag, shared_flags

_CONFIG = config_flag.define("default", "What to measure.")
_OUT = flags.DEFINE_string("out", None, "JSON file to write.", required=True)
_CLUSTER = flags.DEFINE_bool("cluster", False, "Measure a cluster instead.")
shared_flags.define_program_cache()


def main() -> None:
  """Measures and writes the profile."""
  cli.check_folder(_OUT.value)
  if _CLUSTER.value:
    _measure_cluster()
    return
  import jax

  from bamboo_jax.plan import cost_model, render
  from bamboo_jax.runtime import devices as devices_lib
  from bamboo_jax.runtime.profile import profiler
  from bamboo_jax.train.setup import build

  devices_lib.use_virtual_devices(2)  # Two ends of a link.
  task, devices = build.make_task(_CONFIG.value), jax.devices()[:2]
  with tqdm.tqdm(total=len(task.whole.names), unit="layer", disable=not sys.stderr.isatty()) as bar:
    profile = profiler.measure(
        task.whole,
        batch=task.batches.microbatch(0, 0),
        devices=devices,
        fingerprint=profiler.fingerprint_of(task.whole, device=devices[0]),
        on_progress=lambda done, _: bar.update(done - bar.n),
    )
  base.write_atomically(_OUT.value, cost_model.to_json(profile))
  print(f"{render.render_profile(profile)}\nprofile: {_OUT.value}")


def _measure_cluster() -> None:
  from bamboo_jax.experiments import validation
  from bamboo_jax.local_cluster import setup as setup_lib, trial

  config, out = _CONFIG.value, pathlib.Path(_OUT.value)
  setup_lib.check(config, ["a"])
  pipeline = config.pipeline
  run = trial.calibrate(
      cli.find_arguments(("config", "program_cache"), sys.argv[1:]),
      workdir=out.with_suffix(""),
      num_nodes=pipeline.num_pipelines * pipeline.num_stages,
      num_pipelines=pipeline.num_pipelines,
  )
  measured = validation.measure(run)
  base.write_atomically(out, measured.to_json())
  print(f"{measured}\ncluster: {out}")


if __name__ == "__main__":
  cli.run(main)
