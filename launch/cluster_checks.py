"""Checks of flags of a cluster that exclude or need each other."""

from collections.abc import Sequence

from bamboo_jax.launch import cluster_flags as given, flag_checks


def check_together() -> None:
  """Raises `ValueError` for flags that exclude or need each other."""
  flag_checks.check_one_of(given.FAULTS, given.RANDOM_KILLS, given.TRACE)
  flag_checks.check_needs([given.TIME_SCALE], given.TRACE)
  flag_checks.check_needs([given.KINDS, given.SEED], given.RANDOM_KILLS)


def check_for_trace(argv: Sequence[str], *, layers: str | None) -> None:
  """Raises `ValueError` for flags that a run along a trace does not allow."""
  if not given.TRACE.value:
    raise ValueError("There must be a --trace.")
  unused = (
      *(given.ETCD, given.RUN, given.FRACTION),
      *(given.FAULTS, given.RANDOM_KILLS, given.KINDS, given.SEED),
  )
  flag_checks.check_unused(unused, "on a run under a --trace")
  flag_checks.refuse_keys(argv, ["num_steps"], "on a run as long as --trace")
  if layers:
    flag_checks.refuse_keys(argv, ["plan.profile"], "beside --layers")
