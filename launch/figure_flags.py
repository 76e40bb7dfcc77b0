"""The flag `--figure_format` of commands that draw."""

from typing import Any

from absl import flags

from bamboo_jax.metrics import plots

flags.disclaim_key_flags()  # A flag is one of the command that defines it.


class _Parser(flags.ArgumentParser):
  syntactic_help = "a comma separated list"

  def parse(self, argument: str) -> tuple[str, ...]:
    return plots.parse_formats(argument)


class _Serializer(flags.ArgumentSerializer):

  def serialize(self, value: tuple[str, ...]) -> str:
    return ",".join(value)


def define() -> flags.FlagHolder:
  """Defines the flag; its value is a tuple of formats."""
  return flags.DEFINE(
      _Parser(),
      "figure_format",
      "png",
      f"Formats of figures, such as png,pdf; of {', '.join(plots.FORMATS)}.",
      serializer=_Serializer(),
  )


def set_config(holder: flags.FlagHolder, config: Any) -> list[str]:
  """Puts the flag, if given, into the config of a run.

  Returns the arguments that do so in other processes.
  """
  if not holder.present:
    return []
  config.metrics.figure_format = text = ",".join(holder.value)
  return [f"--config.metrics.figure_format={text}"]
