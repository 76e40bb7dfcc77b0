r"""Explores what may happen to a cluster: simulated faults, real decisions.

python -m launch.explore --mode=net --first_seed=0 --seeds=1000

Each seed is a history of 4 to 6 nodes, in mode `large` of 8 to 12, in `grid` of
12 to 27, under a virtual clock, with faults of a kind. Prints for each that
violates an invariant its seed, what was violated, and the smallest plan of
faults found that does so too; then the exit code is 1. Last line: `histories=K
violations=V`.
"""

import dataclasses
import json
import sys
import time

from absl import flags

from launch import cli
from tests.simulation import history
from tests.simulation import plans

_MODE = flags.DEFINE_enum("mode", "all", sorted(plans.MODES), "Which faults.")
_FIRST_SEED = flags.DEFINE_integer("first_seed", 0, "The first seed.")
_SEEDS = flags.DEFINE_integer("seeds", 100, "How many.", lower_bound=1)
_FIRST = flags.DEFINE_bool("first", False, "Stop at the first violation.")
_SHRINK = flags.DEFINE_bool("shrink", True, "Look for a smaller plan.")
_SECS = flags.DEFINE_float(
    "secs", None, "Stop after so many seconds, if that is earlier."
)


def main() -> None:
  """Runs all histories; exits with 1 after a violation."""
  begin_secs = time.monotonic()
  num_histories = num_violations = 0
  for seed in range(_FIRST_SEED.value, _FIRST_SEED.value + _SEEDS.value):
    if _SECS.value and time.monotonic() - begin_secs > _SECS.value:
      break
    num_histories += 1
    plan = plans.draw(_MODE.value, seed)
    if found := history.explore(plan):
      num_violations += 1
      print(f"seed={seed} {found[0]}", flush=True)
      plan = history.shrink(plan) if _SHRINK.value else plan
      print(f"  {json.dumps(dataclasses.asdict(plan))}", flush=True)
      if _FIRST.value:
        break
  print(f"histories={num_histories} violations={num_violations}")
  sys.exit(1 if num_violations else 0)


if __name__ == "__main__":
  cli.run(main)
