r"""Explores what may happen to a cluster: simulated faults, real decisions.

bamboo explore --mode=net --first_seed=0 --seeds=1000

Each seed is a history of 4 to 6 nodes, in mode `large` of 8 to 12, in `grid` of
12 to 27, under a virtual clock, with faults of a kind. For each history that
violates an invariant, prints its seed, the violation, and the smallest plan of
faults found that reproduces it; then the exit code is 1. In mode `wire` it is a
history of the transport between two workers, whose faults are no plan. Last
line: `histories=K violations=V`. With `--done=FILE` the same command resumes
where it was stopped.
"""

import dataclasses
import json
import sys
import time

from absl import flags

from bamboo_jax.launch import cli
from tests.simulation import done
from tests.simulation import history
from tests.simulation import plans
from tests.simulation.wire import history as wire_history

_WIRE = "wire"
_MODE = flags.DEFINE_enum(
    "mode", "all", sorted([*plans.MODES, _WIRE]), "Which faults."
)
_FIRST_SEED = flags.DEFINE_integer("first_seed", 0, "The first seed.")
_SEEDS = flags.DEFINE_integer("seeds", 100, "How many.", lower_bound=1)
_FIRST = flags.DEFINE_bool("first", False, "Stop at the first violation.")
_SHRINK = flags.DEFINE_bool("shrink", True, "Look for a smaller plan.")
_SECS = flags.DEFINE_float(
    "secs", None, "Stop after so many seconds, if that is earlier."
)
_DONE = flags.DEFINE_string("done", None, "File that counts what was done.")


def main() -> None:
  """Runs all histories; exits with 1 after a violation."""
  begin_secs = time.monotonic()
  which = f"mode={_MODE.value} first_seed={_FIRST_SEED.value}"
  num_histories, num_violations = done.read(_DONE.value, which)
  first_seed = _FIRST_SEED.value
  for seed in range(first_seed + num_histories, first_seed + _SEEDS.value):
    if _SECS.value and time.monotonic() - begin_secs > _SECS.value:
      break
    found = _explore(seed)
    num_violations += found
    num_histories += 1
    done.write(_DONE.value, which, num_histories, num_violations)
    if found and _FIRST.value:
      break
  print(f"histories={num_histories} violations={num_violations}")
  sys.exit(1 if num_violations else 0)


def _explore(seed: int) -> bool:
  """Returns whether a history violates an invariant, which it prints."""
  if _MODE.value == _WIRE:
    try:
      wire_history.explore(seed)
      return False
    except wire_history.ViolationError as error:
      print(f"seed={seed} {error}", flush=True)
      return True
  plan = plans.draw(_MODE.value, seed)
  if found := history.explore(plan):
    print(f"seed={seed} {found[0]}", flush=True)
    plan = history.shrink(plan) if _SHRINK.value else plan
    print(f"  {json.dumps(dataclasses.asdict(plan))}", flush=True)
  return bool(found)


if __name__ == "__main__":
  cli.run(main)
