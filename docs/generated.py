"""Pages that repeat the code: options and commands, read as the site is built.

A page with the line `<!-- options -->` gets all options of `configs/default.py`
there, and one with `<!-- commands -->` the help of all commands.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import io
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import tokenize
from typing import Any, NamedTuple

from bamboo_jax.cli import listing
from bamboo_jax.configs import default

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DEFAULTS = _ROOT / "configs" / "default.py"
_LAUNCH = _ROOT / "launch"
_TABLE = ("", "| option | default | meaning |", "| --- | --- | --- |")


class Option(NamedTuple):
  """An option of a run, or a section of them."""

  name: str  # With its sections: `pipeline.num_stages`.
  default: str  # As Python code; empty for a section.
  comment: str  # Empty if there is none.


def read_options(code: str, config: Mapping[str, Any]) -> list[Option]:
  """Returns the options in the code of a config, and its sections, in order.

  A comment belongs to the option on its line, or below if it has a line of its
  own. Values are those of `config`, which the code makes.
  """
  functions = {
      node.name: node
      for node in ast.parse(code).body
      if isinstance(node, ast.FunctionDef)
  }
  comments = _Comments(code)

  def walk(call: ast.Call, prefix: str, values: Any) -> Iterator[Option]:
    for keyword in call.keywords:
      if keyword.arg is None:  # **_section()
        section = functions[keyword.value.func.id]
        yield from walk(_find_result(section), prefix, values)
        continue
      name, value = prefix + keyword.arg, values[keyword.arg]
      comment = comments.find(keyword, within=call.lineno)
      if keyword.arg in _find_sections(call):
        yield Option(name, "", comment)
        yield from walk(keyword.value, f"{name}.", value)
      else:
        yield Option(name, _show(value), comment)

  return list(walk(_find_result(functions["get_config"]), "", config))


def _find_sections(call: ast.Call) -> set[str]:
  """Returns the arguments of a call that are `dict(...)` with some entries."""
  return {
      k.arg
      for k in call.keywords
      if isinstance(k.value, ast.Call)
      and k.value.keywords
      and ast.unparse(k.value.func) == "dict"
  }


def _find_result(function: ast.FunctionDef) -> ast.Call:
  (result,) = (n.value for n in function.body if isinstance(n, ast.Return))
  return result


class _Comments:
  """Comments of a file, by line."""

  def __init__(self, code: str) -> None:
    self._texts, self._alone = {}, set()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
      if token.type == tokenize.COMMENT:
        line = token.start[0]
        self._texts[line] = token.string.lstrip("# ")
        if token.line.lstrip().startswith("#"):
          self._alone.add(line)

  def find(self, keyword: ast.keyword, *, within: int) -> str:
    """Returns the comment of an argument in a call that begins in a line."""
    if keyword.lineno == within:
      return ""  # The comment there is that of the call.
    first = keyword.lineno
    while first - 1 in self._alone:
      first -= 1
    above = [self._texts[line] for line in range(first, keyword.lineno)]
    return " ".join([*above, self._texts.get(keyword.lineno, "")]).strip()


def _show(value: Any) -> str:
  return "{}" if hasattr(value, "keys") else repr(value)


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


def render_command(name: str, text: str, *, needs_tests: bool) -> str:
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
  if needs_tests:
    parts.append("It needs a clone of the repository.")
  if block:
    parts.append(f"```\n{block}\n```")
  return "\n\n".join(parts) + "\n"


def _all_commands() -> str:
  commands = listing.read_summaries(_LAUNCH)
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    texts = list(pool.map(read_help, commands))
  table = ["| command | what |", "| --- | --- |"]
  for name, summary in commands.items():
    table.append(f"| [{name}](#bamboo-{name}) | {summary.text} |")
  sections = [
      render_command(name, text, needs_tests=commands[name].needs_tests)
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
      ("<!-- options -->", _DEFAULTS, _all_options),
      ("<!-- commands -->", _LAUNCH, _all_commands),
  ):
    if line in source[0]:
      source[0] = source[0].replace(line, link_pages(render()))
      app.env.note_dependency(str(path))


def _all_options() -> str:
  code = _DEFAULTS.read_text()
  return render_options(read_options(code, default.get_config()))


def setup(app: Any) -> dict[str, Any]:
  """Makes this module an extension of Sphinx."""
  app.connect("source-read", fill)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
