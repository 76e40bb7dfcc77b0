"""Flags of commands that run many independent jobs; see `experiments.sweep`."""

from collections.abc import Callable
import dataclasses
import functools
import pathlib
from typing import Any

from absl import flags

from bamboo_jax.experiments import sweep
from bamboo_jax.launch import flag_checks

flags.disclaim_key_flags()  # A flag is one of the command that defines it.


@dataclasses.dataclass(frozen=True)
class SweepFlags:
  """The flags on how jobs run, by name."""

  num_processes: flags.FlagHolder[Any]
  scheduler: flags.FlagHolder[Any]
  shard: flags.FlagHolder[Any]
  merge: flags.FlagHolder[Any]

  def read(self, workdir: str | None, *, alone: str = "") -> sweep.Where:
    """Returns where jobs run; results are kept below the workdir, if any.

    `alone`: why jobs must run one after the other on this machine, "" if not.
    """
    flag_checks.check_one_of(self.shard, self.merge)
    if alone:
      flag_checks.check_unused([self.num_processes, self.scheduler], alone)
    if self.scheduler.value:
      flag_checks.check_unused([self.num_processes], "with --scheduler")
    if workdir is None:
      flag_checks.check_unused([self.shard, self.merge], "without --workdir")
    return sweep.Where(
        num_processes=1 if alone else self.num_processes.value,
        scheduler=self.scheduler.value,
        shard=self.shard.value and sweep.parse_shard(self.shard.value),
        num_merged=self.merge.value,
        folder=pathlib.Path(workdir, "jobs") if workdir else None,
    )


def define() -> SweepFlags:
  """Defines the flags."""
  return SweepFlags(
      flags.DEFINE_integer(
          "num_processes", None, "Jobs at once; by default one for each core."
      ),
      flags.DEFINE_string(
          "scheduler",
          None,
          "A Dask scheduler, tcp://host:8786; its workers run the jobs.",
      ),
      flags.DEFINE_string(
          "shard", None, "Run only this part of the jobs, such as 2/4."
      ),
      flags.DEFINE_integer(
          "merge",
          None,
          "Number of shards to merge; no job is run.",
          lower_bound=1,
      ),
  )


def ending(main: Callable[[], None]) -> Callable[[], None]:
  """Returns `main` that prints a line and ends when a shard is done."""

  @functools.wraps(main)
  def run() -> None:
    try:
      main()
    except sweep.ShardEnd as end:
      print(end)

  return run
