r"""Trains a small model in random layouts, and compares their states.

bamboo layouts
bamboo layouts --count=200 --seed=1 --num_events=8
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

from absl import flags

from bamboo_jax.experiments import sweep
from bamboo_jax.launch import cli, config_flag, shared_flags, sweep_flags

_CONFIG_FILE = "sweep_faults"
_CONFIG = config_flag.define(_CONFIG_FILE, "What to train.")
_COUNT = flags.DEFINE_integer("count", 20, "Layouts.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Number of the first layout.")
_NUM_EVENTS = flags.DEFINE_integer(
    "num_events", 4, "Deaths and joins in each layout.", lower_bound=0
)
_PROCESSES = flags.DEFINE_bool("processes", False, "Each layout is a cluster of processes.")
_PROGRAM_CACHE = shared_flags.define_program_cache()
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results are kept.")
flags.adopt_module_key_flags(sweep_flags)


@sweep_flags.ending
def main() -> None:
  """Runs all layouts, prints the summary and exits."""
  from bamboo_jax.testing.fault_sweep import jobs as jobs_lib  # Imports JAX.

  where, arguments = sweep_flags.read(_WORKDIR.value), None
  if _PROCESSES.value:
    arguments = cli.find_arguments(("config", "program_cache"), sys.argv[1:])
    arguments.insert(0, f"--config={_CONFIG_FILE}")
  drawn = jobs_lib.draw(
      _CONFIG.value,
      arguments,
      program_cache=shared_flags.find_program_cache(_PROGRAM_CACHE.value),
      count=_COUNT.value,
      seed=_SEED.value,
      num_events=_NUM_EVENTS.value,
  )
  hashes: collections.Counter[str] = collections.Counter()
  num_failed = 0
  done = sweep.run(jobs_lib.run, drawn, where)
  for job, ended in zip(drawn, done, strict=True):
    hashes.update([ended.state] if ended.state else [])
    num_failed += ended.state is None
    print(f"{ended.outcome} {job.layout} faults={ended.faults}", flush=True)
  where.clear()
  print(f"layouts={_COUNT.value} hashes={len(hashes)} failed={num_failed}")
  sys.exit(len(hashes) > 1 or num_failed > 0)


if __name__ == "__main__":
  cli.run(main)
