r"""Trains a small model in random layouts, and compares their states.

python -m launch.layouts
python -m launch.layouts --count=200 --seed=1 --num_events=8
python -m launch.layouts --config.pipeline.unit=layer

Prints each layout with the hash of its state after `--num_events` and two more
steps. Drawn are sizes, partition, schedule, links, all settings of redundancy
and recovery, and up to `--num_events` deaths and joins; those of a layout
depend on its number alone. The last line is `layouts=N hashes=1 failed=0`; the
exit code is 1 if there is more than one hash, or a layout has failed, of which
the faults are printed as a fault file has them.
"""

import collections
import sys

from absl import flags

from launch import cli
from launch import config_flag
from launch import shared_flags

_CONFIG = config_flag.define("configs/sweep_faults.py", "What to train.")
_COUNT = flags.DEFINE_integer("count", 20, "Layouts.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Number of the first layout.")
_NUM_EVENTS = flags.DEFINE_integer(
    "num_events", 4, "Deaths and joins in each layout.", lower_bound=0
)
_PROGRAM_CACHE = shared_flags.define_program_cache()


def main() -> None:
  """Runs all layouts; prints what they come to and exits."""
  shared_flags.use_program_cache(_PROGRAM_CACHE.value)
  from bamboo_jax.runtime import devices
  from tests.fault_sweep import layouts as layouts_lib

  devices.use_virtual_devices(layouts_lib.MAX_DEVICES, distinct=True)
  layouts = layouts_lib.Layouts(_CONFIG.value, num_events=_NUM_EVENTS.value)
  hashes = collections.Counter()
  num_failed = 0
  drawn = layouts_lib.draw_layouts(
      _COUNT.value, seed=_SEED.value, max_stages=layouts.max_stages
  )
  for number, layout in enumerate(drawn, start=_SEED.value):
    try:
      state = layouts.run(layout)
      hashes[state] += 1
      outcome = state[:12]
    except Exception as error:  # The others are run whatever one does.
      num_failed += 1
      outcome = f"FAILED {type(error).__name__}: {error}"
    faults = ";".join(map(str, layouts.drawn))
    print(f"{number} {outcome} {layout} faults={faults}", flush=True)
  print(f"layouts={_COUNT.value} hashes={len(hashes)} failed={num_failed}")
  sys.exit(len(hashes) > 1 or num_failed > 0)


if __name__ == "__main__":
  cli.run(main)
