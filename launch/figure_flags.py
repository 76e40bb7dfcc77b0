"""The flag `--figure_format` of commands that draw."""

import pathlib
from typing import Any

from absl import flags

from bamboo_jax import config as config_lib
from bamboo_jax.launch import flag_checks
from bamboo_jax.metrics import plots

flags.disclaim_key_flags()  # A flag is one of the command that defines it.


class _Parser(flags.ArgumentParser[Any]):
  syntactic_help = "a comma separated list"

  def parse(self, argument: str) -> tuple[str, ...]:
    return plots.parse_formats(argument)


class _Serializer(flags.ArgumentSerializer[Any]):

  def serialize(self, value: tuple[str, ...]) -> str:
    return ",".join(value)


def define() -> flags.FlagHolder[Any]:
  """Defines the flag; its value is a tuple of formats."""
  return flags.DEFINE(
      _Parser(),
      "figure_format",
      "png",
      f"Formats of figures, such as png,pdf; of {', '.join(plots.FORMATS)}.",
      serializer=_Serializer(),
  )


def find_change(holder: flags.FlagHolder[Any], config: config_lib.Config) -> dict[str, str]:
  """Returns the option of the config that the flag sets; {} if not given."""
  if not holder.present:
    return {}
  if not config.metrics.plots:
    flag_checks.check_unused([holder], "with config.metrics.plots=False")
  return {"metrics.figure_format": ",".join(holder.value)}


def of_file(holder: flags.FlagHolder[Any], path: str | None) -> tuple[str, ...]:
  """Returns the formats of a figure `--out=path`: the flag's, or its suffix.

  Raises `ValueError` if the suffix is no format.
  """
  if path is None:
    return tuple(holder.value)
  suffix = pathlib.Path(path).suffix[1:]
  if suffix not in plots.FORMATS:
    endings = " or ".join(f".{name}" for name in plots.FORMATS)
    raise ValueError(f"--out must end in {endings}, got {path!r}.")
  return holder.value if holder.present else (suffix,)
