r"""Trains a small model in random layouts, and compares their states.

bamboo layouts
bamboo layouts --count=200 --seed=1 --num_events=8
bamboo layouts --config.pipeline.unit=layer
bamboo layouts --processes --count=20 --num_events=6

Prints each layout with the hash of its state after `--num_events` and two more
steps. Sizes, partition, schedule, links, all settings of redundancy and
recovery, and up to `--num_events` deaths and joins are random; those of a
layout depend only on its number. The last line is `layouts=N hashes=1
failed=0`; the exit code is 1 if there is more than one hash, or a layout has
failed, whose faults are printed in the format of a fault file. With
`--processes` each layout is a run of `bamboo cluster` with `--num_events`
random kills of all kinds, or a random trace with that many events, and the
first one is a run of `bamboo train`.
"""

import collections
import sys
from typing import Any

from absl import flags

from bamboo_jax.launch import cli
from bamboo_jax.launch import config_flag
from bamboo_jax.launch import shared_flags

_CONFIG_FILE = "sweep_faults"
_CONFIG = config_flag.define(_CONFIG_FILE, "What to train.")
_COUNT = flags.DEFINE_integer("count", 20, "Layouts.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Number of the first layout.")
_NUM_EVENTS = flags.DEFINE_integer(
    "num_events", 4, "Deaths and joins in each layout.", lower_bound=0
)
_PROCESSES = flags.DEFINE_bool(
    "processes", False, "Each layout is a cluster of processes."
)
_PROGRAM_CACHE = shared_flags.define_program_cache()


def main() -> None:
  """Runs all layouts, prints the summary and exits."""
  layouts = _make()
  hashes: collections.Counter[str] = collections.Counter()
  num_failed = 0
  for layout in layouts.draw(_COUNT.value, seed=_SEED.value):
    try:
      state = layouts.run(layout)
      hashes[state] += 1
      outcome = state[:12]
    except Exception as error:  # The others are run whatever one does.
      num_failed += 1
      outcome = f"FAILED {type(error).__name__}: {error}"
    faults = ";".join(map(str, layouts.drawn))
    print(f"{outcome} {layout} faults={faults}", flush=True)
  print(f"layouts={_COUNT.value} hashes={len(hashes)} failed={num_failed}")
  sys.exit(len(hashes) > 1 or num_failed > 0)


def _make() -> Any:
  """Returns the object that draws layouts and runs them."""
  if _PROCESSES.value:
    from tests.fault_sweep import clusters

    given = cli.find_arguments(("config", "program_cache"), sys.argv[1:])
    given.insert(0, f"--config={_CONFIG_FILE}")
    return clusters.Clusters(given, num_events=_NUM_EVENTS.value)
  shared_flags.use_program_cache(_PROGRAM_CACHE.value)
  from bamboo_jax.runtime import devices
  from tests.fault_sweep import layouts

  devices.use_virtual_devices(layouts.MAX_DEVICES, distinct=True)
  return layouts.Layouts(_CONFIG.value, num_events=_NUM_EVENTS.value)


if __name__ == "__main__":
  cli.run(main)
