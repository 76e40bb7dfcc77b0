r"""Explores histories of a cluster: simulated faults, real decisions.

python -m tests.explorer --mode=net --first_seed=0 --seeds=1000

Each seed is a history of 4 to 6 nodes, in mode `large` of 8 to 12, under a virtual clock, with
faults of a kind. Prints for each violation of an invariant its seed, the violation, and the
smallest plan found with the same one; then the exit code is 1. In mode `wire` it is a
history of the transport between two workers, whose faults are no plan. Last line:
`mode=M histories=K violations=V`.
"""

import argparse
from collections.abc import Iterable
import dataclasses
import functools
import json
import multiprocessing
import sys

from tests.explorer import history, plans, wire

_WIRE = "wire"
MODES = sorted([*plans.MODES, _WIRE])


def explore(seed: int, *, mode: str, shrinks: bool) -> list[str]:
  """Returns lines about the invariants that a history violates."""
  if mode == _WIRE:
    return [f"seed={seed} {fault}" for fault in wire.explore(seed)]
  plan = plans.draw(mode, seed)
  if not (found := history.explore(plan)):
    return []
  plan = history.shrink(plan) if shrinks else plan
  return [f"seed={seed} {found[0]}", f"  {json.dumps(dataclasses.asdict(plan))}"]


def tell(mode: str, histories: Iterable[list[str]], *, only_first: bool) -> int:
  """Prints the lines of each history, then how many there were; returns the exit code."""
  num_histories = num_violations = 0
  for lines in histories:
    num_histories += 1
    if lines:
      num_violations += 1
      print(*lines, sep="\n", flush=True)
      if only_first:
        break
  print(f"mode={mode} histories={num_histories} violations={num_violations}", flush=True)
  return int(num_violations > 0)


def main(argv: list[str] | None = None) -> int:
  """Runs the histories of one mode, or of each; returns the exit code."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--mode", default="all", choices=[*MODES, "each"], help="which faults")
  parser.add_argument("--first_seed", type=int, default=0)
  parser.add_argument("--seeds", type=int, default=100, help="how many, of each mode")
  parser.add_argument("--first", action="store_true", help="stop at the first violation")
  parser.add_argument("--noshrink", action="store_true", help="look for no smaller plan")
  parser.add_argument("--num_processes", type=int, help="by default one for each core")
  args = parser.parse_args(argv)
  seeds = range(args.first_seed, args.first_seed + args.seeds)
  status = 0
  with multiprocessing.Pool(args.num_processes) as pool:
    for mode in MODES if args.mode == "each" else [args.mode]:
      call = functools.partial(explore, mode=mode, shrinks=not args.noshrink)
      status |= tell(mode, pool.imap(call, seeds, chunksize=10), only_first=args.first)
  return status


if __name__ == "__main__":
  sys.exit(main())
