r"""Measures what the layers of a model cost on this machine.

python -m launch.profile --config=configs/quickstart.py --out=profile.json
python -m launch.train --config=configs/quickstart.py \
  --config.plan.profile=profile.json --workdir=runs/profiled
"""

from collections.abc import Sequence
import sys

from absl import flags
import tqdm

from launch import cli
from launch import config_flag

_CONFIG = config_flag.define("configs/default.py", "What to measure.")
_OUT = flags.DEFINE_string("out", None, "JSON file to write.", required=True)


def main(argv: Sequence[str]) -> None:
  """Measures and writes the profile."""
  cli.check_no_arguments(argv)
  cli.check_folder(_OUT.value)
  import jax

  from bamboo_jax import base
  from bamboo_jax.plan import profile_json
  from bamboo_jax.runtime import devices as devices_lib
  from bamboo_jax.runtime.profile import profiler
  from bamboo_jax.train.setup import build

  config = _CONFIG.value
  devices_lib.use_virtual_devices(2)  # Two ends of a link.
  task = build.make_task(config)
  bar = tqdm.tqdm(
      total=len(task.layer_names), unit="layer", disable=not sys.stderr.isatty()
  )
  with bar:
    profile = profiler.measure(
        task.whole,
        batch=task.batches.microbatch(0, 0),
        devices=jax.devices()[:2],
        fingerprint=profiler.fingerprint_of(
            task.whole, device=jax.devices()[0]
        ),
        on_progress=lambda done, _: bar.update(done - bar.n),
    )
  base.write_atomically(_OUT.value, profile_json.to_json(profile))
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


if __name__ == "__main__":
  cli.run(main)
