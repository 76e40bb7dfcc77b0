r"""Kills nodes of a small training run at every possible point, and compares.

bamboo verify
bamboo verify --num_stages=4 --num_microbatches=4 \
  --num_pipelines=2 --modes=eager --every=3
bamboo verify --num_stages=4 --num_pipelines=2 \
  --kinds=pair,second,neighbours,two_stages --num_cases=100
bamboo verify --kinds=storm --num_cases=1 --num_events=100 \
  --num_stages=2 --num_pipelines=6 --num_microbatches=2 --modes=eager \
  --config.redundancy.spares=1 --config.pipeline.num_shares=12 \
  --config.pipeline.layout=templates
bamboo verify --layouts=200 --seed=1 --num_events=8
bamboo verify --layouts=20 --processes --num_events=6

Every node dies before every instruction of its row and before every phase of a
step. That step, and the next one on the survivors, must end in the state of a
run without deaths, to the bit, on any rung. Combinations of several deaths are
random. Prints a line for each size, mode and kind, with the rungs taken, and
one for each failed case: its deaths, in the format of a fault file, and the
differences. The exit code is 1 if a case failed.

With `--layouts` it trains in random layouts instead, and prints each with the
hash of its state after `--num_events` and two more steps. Sizes, partition,
schedule, links, all settings of redundancy and recovery, and up to
`--num_events` deaths and joins are random; those of a layout depend only on its
number, from `--seed` on. The last line is `layouts=N hashes=1 failed=0`; the
exit code is 1 if there is more than one hash, or a layout has failed. With
`--processes` each layout is a run of `bamboo cluster` with `--num_events`
random kills of all kinds, or a random trace with that many events, and the
first one is a run of `bamboo train`.
"""

import collections
import dataclasses
import sys

from bamboo_jax.cli import flagset
from bamboo_jax.config import Config
from bamboo_jax.experiments import sweep as sweep_lib
from bamboo_jax.launch import cli, shared

_STORM_EVENTS, _LAYOUT_EVENTS = 20, 4


@dataclasses.dataclass(frozen=True)
class VerifyFlags:
  """What dies, and where."""

  config: Config = cli.config("sweep_faults", "What to train.")
  num_stages: tuple[int, ...] = flagset.flag((2, 3, 4), "Stages.", least=1)
  num_microbatches: tuple[int, ...] = flagset.flag(
      (1, 4), "Microbatches of each pipeline.", least=1
  )
  num_pipelines: tuple[int, ...] = flagset.flag((1, 2), "Pipelines.", least=1)
  modes: tuple[str, ...] = flagset.flag(("eager", "lazy"), "Modes of redundancy.")
  kinds: tuple[str, ...] = flagset.flag(
      ("single",),
      "Nodes that die: single, one node; pair, two that leave a copy of all stages; neighbours, "
      "two that do not; second, one more in the recovery; two_stages, in the next step the one "
      "that runs the lost stage too; storm, --num_events deaths and joins, and rows may compile "
      "nothing.",
  )
  every: int = flagset.flag(1, "Single deaths: before every n-th instruction.", least=1)
  num_cases: int = flagset.flag(50, "Random cases of each other kind.", least=1)
  num_events: int | None = flagset.flag(
      None,
      f"Deaths and joins of a storm, by default {_STORM_EVENTS}, or of each layout, by default "
      f"{_LAYOUT_EVENTS}.",
      least=0,
  )
  seed: int = flagset.flag(0, "Of random cases; number of the first layout.")
  layouts: int | None = flagset.flag(None, "Random layouts to compare.", least=1)
  processes: bool = flagset.flag(False, "Each layout is a cluster of processes.", needs="layouts")
  program_cache: str | None = shared.program_cache()
  workdir: str | None = flagset.flag(None, "Where results are kept.", needs="layouts")
  jobs: shared.JobFlags = flagset.part(shared.JobFlags)


_SIZES = "num_stages num_microbatches num_pipelines modes kinds every num_cases".split()
_JOBS = ("program_cache", *(field.name for field in dataclasses.fields(shared.JobFlags)))


@shared.ending
def main(flags: VerifyFlags) -> None:
  """Runs all cases or layouts; prints the outcome and exits."""
  if flags.layouts is None:
    flagset.refuse(_JOBS, "without --layouts")
    _kill_everywhere(flags)
  else:
    flagset.refuse(_SIZES, "with --layouts, which draws all")
    _compare_layouts(flags)


def _kill_everywhere(flags: VerifyFlags) -> None:
  from bamboo_jax.testing.fault_sweep import sweep

  configs = sweep.make_configs(
      flags.config,
      num_stages=flags.num_stages,
      num_pipelines=flags.num_pipelines,
      num_microbatches=flags.num_microbatches,
      modes=flags.modes,
  )
  num_failed = sweep.sweep(
      configs,
      flags.kinds,
      every=flags.every,
      num_cases=flags.num_cases,
      num_events=_STORM_EVENTS if flags.num_events is None else flags.num_events,
      seed=flags.seed,
  )
  sys.exit(1 if num_failed else 0)


def _compare_layouts(flags: VerifyFlags) -> None:
  from bamboo_jax.testing.fault_sweep import jobs as jobs_lib  # Imports JAX.

  assert flags.layouts is not None
  where = flags.jobs.read(flags.workdir)
  drawn = jobs_lib.draw(
      flags.config,
      flagset.to_argv(flags, "config", "program_cache") if flags.processes else None,
      program_cache=shared.find_program_cache(flags.program_cache),
      count=flags.layouts,
      seed=flags.seed,
      num_events=_LAYOUT_EVENTS if flags.num_events is None else flags.num_events,
  )
  hashes: collections.Counter[str] = collections.Counter()
  num_failed = 0
  done = sweep_lib.run(jobs_lib.run, drawn, where)
  for job, ended in zip(drawn, done, strict=True):
    hashes.update([ended.state] if ended.state else [])
    num_failed += ended.state is None
    print(f"{ended.outcome} {job.layout} faults={ended.faults}", flush=True)
  where.clear()
  print(f"layouts={flags.layouts} hashes={len(hashes)} failed={num_failed}")
  sys.exit(len(hashes) > 1 or num_failed > 0)


if __name__ == "__main__":
  cli.run(main)
