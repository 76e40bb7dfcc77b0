r"""Trains a small model in random layouts, and compares their states.

python -m launch.layouts
python -m launch.layouts --count=200 --seed=1
python -m launch.layouts --config.pipeline.unit=layer

Prints each layout with the hash of its state after three steps. The last line
is `layouts=N hashes=1`; the exit code is 1 if there is more than one hash.
"""

import collections
import sys

from absl import flags

from launch import cli
from launch import config_flag
from launch import shared_flags

_CONFIG = config_flag.define("configs/sweep_faults.py", "What to train.")
_COUNT = flags.DEFINE_integer("count", 20, "Layouts.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the layouts.")
_PROGRAM_CACHE = shared_flags.define_program_cache()


def main() -> None:
  """Runs all layouts; prints what they come to and exits."""
  shared_flags.use_program_cache(_PROGRAM_CACHE.value)
  from bamboo_jax.runtime import devices
  from tests.fault_sweep import layouts as layouts_lib

  devices.use_virtual_devices(layouts_lib.MAX_DEVICES, distinct=True)
  layouts = layouts_lib.Layouts(_CONFIG.value)
  hashes = collections.Counter()
  drawn = layouts_lib.draw_layouts(
      _COUNT.value, seed=_SEED.value, max_stages=layouts.max_stages
  )
  for number, layout in enumerate(drawn, start=1):
    state = layouts.run(layout)
    hashes[state] += 1
    print(f"{number}/{_COUNT.value} {state[:12]} {layout}", flush=True)
  print(f"layouts={_COUNT.value} hashes={len(hashes)}")
  sys.exit(len(hashes) > 1)


if __name__ == "__main__":
  cli.run(main)
