"""The commands in a folder and their summaries, for `bamboo --help`."""

from collections.abc import Collection, Mapping
import pathlib
import re
import textwrap
from typing import Any

_HELP = """\
usage: bamboo COMMAND [--flag=value ...]
       bamboo COMMAND --help    what it does, and its flags

Commands:
{commands}

Configs, for --config=NAME; also --config=FILE, and NAME:ARGUMENT for variants:
{configs}

Pages:
  docs/start/first_minute.md
  docs/reference/options.md, or bamboo options, for --config.NAME=VALUE
"""


def read_summaries(folder: pathlib.Path) -> dict[str, str]:
  """Returns the first line on each command in a folder, by its name.

  Reads the modules without importing them, which would take seconds.
  """
  found = {}
  for path in sorted(folder.glob("[a-z]*.py")):
    text = path.read_text(encoding="utf-8")
    if "\n  cli.run(" in text:
      (found[path.stem],) = re.findall(r'\Ar?"""(.*)', text)
  return found


def render(summaries: Mapping[str, str], configs: Collection[str]) -> str:
  """Returns the text of `bamboo --help`."""
  commands = "\n".join(f"  {n:12} {text}" for n, text in summaries.items())
  indent: dict[str, Any] = dict(initial_indent="  ", subsequent_indent="  ")
  names = textwrap.fill(", ".join(configs), width=80, **indent)
  return _HELP.format(commands=commands, configs=names)
