r"""Lists the options of a run: `--config.NAME=VALUE`, by section.

bamboo options
bamboo options pipeline optimizer
bamboo options pipeline.num_stages

Each has its type, its default in `configs/default.py`, and its meaning. What a
config sets differently, `--print_config` of the command that takes it shows.
"""

from collections.abc import Sequence
import dataclasses
import textwrap

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import packaged
from bamboo_jax.cli import flagset
from bamboo_jax.launch import cli


@dataclasses.dataclass(frozen=True)
class OptionsFlags:
  """What to list."""

  names: tuple[str, ...] = flagset.flag((), "Sections or options; by default all.", takes_rest=True)


def main(flags: OptionsFlags) -> None:
  """Prints the options below each name, or all."""
  options = [*config_lib.list_options(config_lib.Config)]
  chosen = flags.names or [option.name for option in options if "." not in option.name]
  print("\n".join(_render(options, name.removeprefix("config.")) for name in chosen))


def _render(options: Sequence[config_lib.Option], name: str) -> str:
  found = [o for o in options if f"{o.name}.".startswith(f"{name}.")]
  found = found or [o for o in options if o.name.endswith(f".{name}")]
  if not found:
    hint = base.hint_at(name, {o.name for o in options} | {o.name.split(".")[-1] for o in options})
    sections = ", ".join(o.name for o in options if not o.default and "." not in o.name)
    raise ValueError(f"Unknown section or option {name!r}{hint} Sections: {sections}.")
  lines = []
  for option in found:
    lines.append(f"{option.name}: {option.kind}")
    if option.default:
      lines[-1] += f" = {option.default}"
    lines.append(textwrap.indent(textwrap.fill(packaged.locate_pages(option.help), 76), "    "))
  return "\n".join(lines)


if __name__ == "__main__":
  cli.run(main)
