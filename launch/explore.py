r"""Explores what may happen to a cluster: simulated faults, real decisions.

bamboo explore --mode=net --first_seed=0 --seeds=1000

Each seed is a history of 4 to 6 nodes, in mode `large` of 8 to 12, in `grid` of
12 to 27, under a virtual clock, with faults of a kind. Prints for each that
violates an invariant its seed, what was violated, and the smallest plan of
faults found that does so too; then the exit code is 1. In mode `wire` it is a
history of the transport between two workers, whose faults are no plan. Last
line: `histories=K violations=V`. With `--workdir` the same command resumes.
"""

import itertools
import sys
import time

from absl import flags

from bamboo_jax.experiments import sweep
from bamboo_jax.launch import cli, sweep_flags
from bamboo_jax.testing.simulation import modes

_SIZE = 10  # Histories of a job.

_MODE = flags.DEFINE_enum("mode", "all", modes.MODES, "Which faults.")
_FIRST_SEED = flags.DEFINE_integer("first_seed", 0, "The first seed.")
_SEEDS = flags.DEFINE_integer("seeds", 100, "How many.", lower_bound=1)
_FIRST = flags.DEFINE_bool("first", False, "Stop at the first violation.")
_SHRINK = flags.DEFINE_bool("shrink", True, "Look for a smaller plan.")
_SECS = flags.DEFINE_float("secs", None, "Stop after this time at the latest.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results are kept.")
flags.adopt_module_key_flags(sweep_flags)


@sweep_flags.ending
def main() -> None:
  """Runs all histories; exits with 1 after a violation."""
  begin_secs = time.monotonic()
  where = sweep_flags.read(_WORKDIR.value)
  first_seed, end_seed = _FIRST_SEED.value, _FIRST_SEED.value + _SEEDS.value
  jobs = [
      modes.Histories(_MODE.value, start, min(start + _SIZE, end_seed), _SHRINK.value)
      for start in range(first_seed, end_seed, _SIZE)
  ]
  num_histories = num_violations = 0
  for found in itertools.chain.from_iterable(sweep.run(modes.explore_all, jobs, where)):
    num_histories += 1
    num_violations += bool(found)
    if found:
      print(*found, sep="\n", flush=True)
    late = _SECS.value and time.monotonic() - begin_secs > _SECS.value
    if late or (found and _FIRST.value):
      break
  else:
    where.clear()
  print(f"histories={num_histories} violations={num_violations}")
  sys.exit(1 if num_violations else 0)


if __name__ == "__main__":
  cli.run(main)
