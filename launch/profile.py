r"""Measures the costs of a model's layers, of a transfer and of a vote on this machine.

bamboo profile --config=quickstart --out=profile.json
bamboo cluster --config=quickstart \
  --config.plan.profile=profile.json --workdir=runs/profiled
"""

import dataclasses
import sys

import tqdm

from bamboo_jax import base
from bamboo_jax.cli import flagset
from bamboo_jax.config import Config
from bamboo_jax.launch import cli


@dataclasses.dataclass(frozen=True)
class ProfileFlags:
  """What to measure."""

  config: Config = cli.config("default", "What to measure.")
  out: str = flagset.flag(None, "JSON file to write.", is_needed=True)


def main(flags: ProfileFlags) -> None:
  """Measures and writes the profile."""
  cli.check_folder(flags.out)
  import jax

  from bamboo_jax.plan import cost_model, render
  from bamboo_jax.runtime import devices as devices_lib
  from bamboo_jax.runtime.profile import profiler
  from bamboo_jax.training.setup import build

  devices_lib.use_virtual_devices(1)
  task, device = build.make_task(flags.config), jax.devices()[0]
  with tqdm.tqdm(total=len(task.whole.names), unit="layer", disable=not sys.stderr.isatty()) as bar:
    profile = profiler.measure(
        task.whole,
        batch=task.batches.microbatch(0, 0),
        device=device,
        fingerprint=profiler.fingerprint_of(task.whole, device=device),
        on_progress=lambda done, _: bar.update(done - bar.n),
    )
  base.write_atomically(flags.out, cost_model.to_json(profile))
  print(f"{render.render_profile(profile)}\nprofile: {flags.out}")


if __name__ == "__main__":
  cli.run(main)
