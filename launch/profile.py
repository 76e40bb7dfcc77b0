r"""Measures what the layers of a model cost on this machine.

python -m launch.profile --config=configs/quickstart.py --out=profile.json
python -m launch.train --config=configs/quickstart.py \
  --config.plan.profile=profile.json --workdir=runs/profiled

With `--cluster` a cluster on this machine loses a node and gets another, and of
several pipelines loses one and gets another. The file then has how long that
took, and steps; `launch.validate` reads it. The logs are in a folder beside the
file.
"""

import dataclasses
import pathlib
import sys

from absl import flags
import tqdm

from bamboo_jax import base
from launch import cli
from launch import config_flag
from launch import shared_flags

_CONFIG = config_flag.define("configs/default.py", "What to measure.")
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

  from bamboo_jax.plan import cost_model
  from bamboo_jax.runtime import devices as devices_lib
  from bamboo_jax.runtime.profile import profiler
  from bamboo_jax.train.setup import build

  devices_lib.use_virtual_devices(2)  # Two ends of a link.
  task, devices = build.make_task(_CONFIG.value), jax.devices()[:2]
  with tqdm.tqdm(
      total=len(task.layer_names), unit="layer", disable=not sys.stderr.isatty()
  ) as bar:
    profile = profiler.measure(
        task.whole,
        batch=task.batches.microbatch(0, 0),
        devices=devices,
        fingerprint=profiler.fingerprint_of(task.whole, device=devices[0]),
        on_progress=lambda done, _: bar.update(done - bar.n),
    )
  base.write_atomically(_OUT.value, cost_model.to_json(profile))
  for layer in profile.layers:
    print(
        f"layer={layer.name} forward_ms={layer.forward_ms:.3f} "
        f"backward_ms={layer.backward_ms:.3f} update_ms={layer.update_ms:.3f} "
        f"parameter_bytes={layer.parameter_bytes} "
        f"residual_bytes={layer.residual_bytes}"
    )
  print(
      f"link_latency_ms={profile.link_latency_ms:.3f} "
      f"link_bytes_per_ms={profile.link_bytes_per_ms:.0f}"
  )
  print(f"profile: {_OUT.value}")


def _measure_cluster() -> None:
  from bamboo_jax.experiments import validation
  from bamboo_jax.local_cluster import setup as setup_lib
  from bamboo_jax.local_cluster import trial

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
  for name, secs in dataclasses.asdict(measured.durations).items():
    print(f"{name}={secs:.3f}")
  for step in measured.steps:
    print(
        f"nodes={step.num_nodes} pipelines={step.num_pipelines} "
        f"step_ms={1e3 * step.cost.secs:.1f}"
    )
  print(f"cluster: {out}")


if __name__ == "__main__":
  cli.run(main)
