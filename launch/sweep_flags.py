"""Flags of commands that run many independent jobs; see `experiments.sweep`."""

from collections.abc import Callable
import functools
import pathlib

from absl import flags

from bamboo_jax.experiments import sweep
from bamboo_jax.launch import flag_checks

_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "Jobs at once; by default one for each core."
)
_SCHEDULER = flags.DEFINE_string(
    "scheduler", None, "A Dask scheduler, tcp://host:8786; its workers run the jobs."
)
_SHARD = flags.DEFINE_string("shard", None, "Run only this part of the jobs, such as 2/4.")
_MERGE = flags.DEFINE_integer(
    "merge", None, "Number of shards to merge; no job is run.", lower_bound=1
)


def read(workdir: str | None, *, alone: str = "") -> sweep.Where:
  """Returns where jobs run; results are kept below the workdir, if any.

  `alone`: why jobs must run one after the other on this machine, "" if not.
  """
  flag_checks.check_one_of(_SHARD, _MERGE)
  if alone:
    flag_checks.check_unused([_NUM_PROCESSES, _SCHEDULER], alone)
  if _SCHEDULER.value:
    flag_checks.check_unused([_NUM_PROCESSES], "with --scheduler")
  if workdir is None:
    flag_checks.check_unused([_SHARD, _MERGE], "without --workdir")
  return sweep.Where(
      num_processes=1 if alone else _NUM_PROCESSES.value,
      scheduler=_SCHEDULER.value,
      shard=sweep.parse_shard(_SHARD.value) if _SHARD.value else None,
      num_merged=_MERGE.value,
      folder=pathlib.Path(workdir, "jobs") if workdir else None,
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
