"""The flags of `bamboo ablate` that say what runs."""

import sys
from typing import Any

from absl import flags

from bamboo_jax.base import packaged
from bamboo_jax.benchmarks import ablation
from bamboo_jax.experiments import sweep
from bamboo_jax.launch import cli, config_flag, flag_checks

DEFAULT = "quickstart"
_SHARED = ("config", *ablation.FILES, "time_scale", "nodes", "program_cache")
_SWEEP = flags.DEFINE_multi_string(
    "sweep",
    None,
    "A field of the config, faults or trace, and its values: seed=0,1.",
    required=True,
)
_FAULTS = flags.DEFINE_string("faults", None, "As for `bamboo train`.")
_TRACE = flags.DEFINE_string("trace", None, "As for `bamboo cluster`, and these:")
_TIME_SCALE = flags.DEFINE_float("time_scale", None, "Only with a trace.")
_NODES = flags.DEFINE_integer("nodes", None, "Only with a trace.")


def read_sweeps() -> dict[str, tuple[str, ...]]:
  """Returns the values of each field; `ValueError` if one is not allowed."""
  sweeps: dict[str, tuple[str, ...]] = ablation.parse_sweeps(_SWEEP.value)
  flag_checks.refuse_keys(sys.argv[1:], sweeps, "beside a --sweep of it")
  given = {name for name in ablation.FILES if flags.FLAGS[name].value}
  twice = given & {*sweeps}
  flag_checks.refuse([f"--{n}" for n in twice], "beside a --sweep of it")
  if len(used := given | {*sweeps} & {*ablation.FILES}) > 1:
    raise ValueError(f"Give one of {' and '.join(sorted(used))}, not both.")
  if "trace" not in used:
    flag_checks.check_needs([_TIME_SCALE, _NODES], _TRACE)
  for field, value in ((f, v) for f, own in sweeps.items() for v in own):
    if field in ablation.FILES:
      packaged.find_file(value)
    else:
      config_flag.check_arguments([f"--config.{field}={value}"])
  return sweeps


def find_command(sweeps: ablation.Sweeps) -> tuple[str, tuple[str, ...], list[str]]:
  """Returns module and arguments of all runs, and hashes of their files."""
  program = "cluster" if _TRACE.value or "trace" in sweeps else "train"
  config: Any = flags.FLAGS["config"].value
  shared = (*_SHARED, *["figure_format"] * config.metrics.plots)
  given = cli.find_arguments(shared, sys.argv[1:])
  if not flags.FLAGS["config"].present:
    given.insert(0, f"--config={DEFAULT}")
  files = [_FAULTS.value, _TRACE.value]
  files += [v for name in ablation.FILES for v in sweeps.get(name, ())]
  hashes = [*sweep.digest_files(files), str(config)]
  return f"bamboo_jax.launch.{program}", tuple(given), hashes
