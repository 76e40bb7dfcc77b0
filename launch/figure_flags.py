"""The flag `--figure_format` of commands that draw."""

import pathlib
from typing import Any

from absl import flags

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


def set_config(holder: flags.FlagHolder[Any], config: Any) -> list[str]:
  """Sets the config of a run from the flag, if given.

  Returns the arguments that set it in other processes.
  """
  if not holder.present:
    return []
  if not config.metrics.plots:
    flag_checks.check_unused([holder], "with config.metrics.plots=False")
  config.metrics.figure_format = text = ",".join(holder.value)
  return [f"--config.metrics.figure_format={text}"]


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
