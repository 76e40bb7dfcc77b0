r"""Explores what may happen to a cluster: simulated faults, real decisions.

bamboo explore --mode=net --first_seed=0 --seeds=1000

Each seed is a history of 4 to 6 nodes, in mode `large` of 8 to 12, in `grid` of
12 to 27, under a virtual clock, with faults of a kind. Prints for each that
violates an invariant its seed, what was violated, and the smallest plan of
faults found that does so too; then the exit code is 1. In mode `wire` it is a
history of the transport between two workers, whose faults are no plan. Last
line: `histories=K violations=V`. With `--done=FILE` the same command goes on
where it was stopped.
"""

import pathlib
import sys
import time

from absl import flags

from bamboo_jax.base import files
from bamboo_jax.launch import cli
from tests.simulation import modes

_MODE = flags.DEFINE_enum("mode", "all", modes.MODES, "Which faults.")
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
  num_histories, num_violations = _read_done(which)
  first_seed = _FIRST_SEED.value
  for seed in range(first_seed + num_histories, first_seed + _SEEDS.value):
    if _SECS.value and time.monotonic() - begin_secs > _SECS.value:
      break
    found = modes.explore(_MODE.value, seed, shrinks=_SHRINK.value)
    num_violations += bool(found)
    if found:
      print(*found, sep="\n", flush=True)
    num_histories += 1
    if _DONE.value:
      counts = f"{which} {num_histories} {num_violations}"
      files.write_atomically(_DONE.value, counts, sync=False)
    if found and _FIRST.value:
      break
  print(f"histories={num_histories} violations={num_violations}")
  sys.exit(1 if num_violations else 0)


def _read_done(which: str) -> tuple[int, int]:
  """Returns how many histories were run before, and how many violated."""
  if not _DONE.value or not pathlib.Path(_DONE.value).exists():
    return 0, 0
  text = pathlib.Path(_DONE.value).read_text()
  words = text.split()
  if words[:-2] != which.split() or not "".join(words[-2:]).isdecimal():
    raise ValueError(
        f"--done={_DONE.value} has {text!r}, no counts of {which}."
    )
  return int(words[-2]), int(words[-1])


if __name__ == "__main__":
  cli.run(main)
