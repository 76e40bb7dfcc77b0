"""The commands in a folder and their summaries, for `bamboo --help`."""

from collections.abc import Collection, Mapping
import pathlib
import re
import textwrap
from typing import Any, NamedTuple

_HELP = """\
usage: bamboo COMMAND [--flag=value ...]
       bamboo COMMAND --help    what it does, and its flags

Commands:
{commands}

In a clone of the repository only (they use its tests):
{repository}

Configs, for --config=NAME; also --config=FILE, and NAME:ARGUMENT for variants:
{configs}
"""


class Summary(NamedTuple):
  """One line on a command.

  Attributes:
    text: First line of its docstring.
    needs_tests: It imports from `tests`, which is not installed.
  """

  text: str
  needs_tests: bool


def read_summaries(folder: pathlib.Path) -> dict[str, Summary]:
  """Returns the summary of each command in a folder, by its name.

  Reads the modules without importing them, which would take seconds.
  """
  found = {}
  for path in sorted(folder.glob("[a-z]*.py")):
    text = path.read_text(encoding="utf-8")
    if "\n  cli.run(" in text:
      (summary,) = re.findall(r'\Ar?"""(.*)', text)
      found[path.stem] = Summary(summary, "from tests." in text)
  return found


def render(summaries: Mapping[str, Summary], configs: Collection[str]) -> str:
  """Returns the text of `bamboo --help`."""
  commands, repository = (
      "\n".join(
          f"  {name:12} {summary.text}"
          for name, summary in summaries.items()
          if summary.needs_tests == needs_tests
      )
      for needs_tests in (False, True)
  )
  indent: dict[str, Any] = dict(initial_indent="  ", subsequent_indent="  ")
  names = textwrap.fill(", ".join(configs), width=80, **indent)
  return _HELP.format(commands=commands, repository=repository, configs=names)
