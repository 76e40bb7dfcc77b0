"""Pages that repeat the code: options and commands, read as the site is built.

A page with the line `<!-- options -->` gets all options of `bamboo_jax/config`
there, and one with `<!-- commands -->` the help of all commands.
"""

from collections.abc import Iterator, Sequence
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple

from bamboo_jax import config
from bamboo_jax.cli import listing

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_SECTIONS = _ROOT / "bamboo_jax" / "config"
_LAUNCH = _ROOT / "launch"
_TABLE = ("", "| option | default | meaning |", "| --- | --- | --- |")


class Option(NamedTuple):
  """An option of a run, or a section of them."""

  name: str  # With its sections: `pipeline.num_stages`.
  default: str  # As Python code; empty for a section.
  comment: str  # Empty if there is none.


def read_options(
    section: type[config.Section], prefix: str = ""
) -> Iterator[Option]:
  """Yields the options of a section, and the sections in it, in order."""
  helps, values = config.help_of(section), section().to_dict()
  for key, kind in config.kinds_of(section).items():
    is_section = config.is_section(kind)
    shown = "" if is_section else repr(values[key])
    yield Option(prefix + key, shown, helps[key])
    if is_section:
      yield from read_options(kind, f"{prefix}{key}.")


def render_options(options: Sequence[Option]) -> str:
  """Returns tables in Markdown, one for each section on top."""
  lines, section = ["## The run", *_TABLE], None
  for option in options:
    top = option.name.split(".")[0]
    is_section = not option.default
    if is_section and option.name == top:
      section = top
      lines += ["", f"## {top}", "", option.comment, *_TABLE]
      continue
    assert "." not in option.name or top == section, option
    default_value = f"`{option.default}`" if option.default else ""
    comment = option.comment.replace("|", "\\|")
    lines.append(f"| `{option.name}` | {default_value} | {comment} |")
  return "\n".join(lines) + "\n"


def read_help(name: str) -> str:
  """Returns what `bamboo NAME --help` prints."""
  return subprocess.run(
      [sys.executable, "-m", f"bamboo_jax.launch.{name}", "--help"],
      capture_output=True,
      check=False,  # absl ends with status 1.
      cwd=_ROOT,
      env=os.environ | {"PYTHONPATH": str(_ROOT)},
      text=True,
  ).stdout


def render_command(name: str, text: str) -> str:
  """Returns a section in Markdown from the help of a command.

  Examples follow the summary and become a block of code, as do the flags.
  """
  body, _, flags = text.partition("\nflags:\n")
  body = re.sub(
      r"\n\n(bamboo .*?)(?=\n\n|\n*\Z)",
      r"\n\n```\n\1\n```",
      body.strip(),
      flags=re.DOTALL,
  )
  shown = [line for line in flags.splitlines() if line.startswith("  ")]
  block = textwrap.dedent("\n".join(shown))
  parts = [f"## bamboo {name}", body]
  if block:
    parts.append(f"```\n{block}\n```")
  return "\n\n".join(parts) + "\n"


def _all_commands() -> str:
  commands = listing.read_summaries(_LAUNCH)
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    texts = list(pool.map(read_help, commands))
  table = ["| command | what |", "| --- | --- |"]
  for name, summary in commands.items():
    table.append(f"| [{name}](#bamboo-{name}) | {summary} |")
  sections = [
      render_command(name, text)
      for name, text in zip(commands, texts, strict=True)
  ]
  return "\n".join([*table, "", *sections])


def link_pages(text: str) -> str:
  """Returns text of a page in docs/reference/ with mentions of pages linked.

  The code mentions a page by its path, `docs/guides/cluster.md`.
  """
  return re.sub(r"`?docs/([\w/]*?)(\w+)\.md`?", r"[\2](../\1\2.md)", text)


def fill(app: Any, page: str, source: list[str]) -> None:
  """Puts what is generated into a page that asks for it (`source-read`)."""
  for line, path, render in (
      ("<!-- options -->", _SECTIONS, _all_options),
      ("<!-- commands -->", _LAUNCH, _all_commands),
  ):
    if line in source[0]:
      source[0] = source[0].replace(line, link_pages(render()))
      app.env.note_dependency(str(path))


def _all_options() -> str:
  return render_options([*read_options(config.Config)])


def setup(app: Any) -> dict[str, Any]:
  """Makes this module an extension of Sphinx."""
  app.connect("source-read", fill)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
