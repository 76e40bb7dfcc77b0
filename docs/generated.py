"""Parts of pages that repeat the code: `python docs/generated.py` writes them.

A part stands between two comments, of which the first names what it repeats:

  <!-- generated: options -->            all options of `bamboo_jax/config`
  <!-- generated: commands -->           what `bamboo COMMAND --help` prints
  <!-- generated: examples/plain.py -->  a file
  <!-- generated: examples/plain.py, def loss -->  a definition in a file
  <!-- generated: reproductions/oobleck/digits.csv -->  figures of others beside ours
  <!-- end -->

With `--check` nothing is written: it names the pages that differ, and fails.
"""

import ast
from collections.abc import Sequence
import contextlib
import csv
import functools
import io
import multiprocessing
import os
import pathlib
import re
import runpy
import sys

_DOCS = pathlib.Path(__file__).resolve().parent
_ROOT = _DOCS.parent
sys.path.insert(0, str(_ROOT))

from bamboo_jax import config  # noqa: E402
from bamboo_jax.launch import __main__ as _bamboo, cli as _cli  # noqa: E402, F401

_TABLE = ("", "| option | default | meaning |", "| --- | --- | --- |")
_PART = re.compile(
    r"(?<=^<!-- generated: )(.+?)( -->\n).*?(?=^<!-- end -->$)", flags=re.DOTALL | re.MULTILINE
)


def render_options(options: Sequence[config.Option]) -> str:
  """Returns tables in Markdown, one for each section on top."""
  lines, section = ["### The run", *_TABLE], None
  for option in options:
    top = option.name.split(".")[0]
    is_section = not option.default
    if is_section and option.name == top:
      section = top
      lines += ["", f"### {top}", "", option.help, *_TABLE]
      continue
    assert "." not in option.name or top == section, option
    default_value = f"`{option.default}`" if option.default else ""
    comment = option.help.replace("|", "\\|")
    lines.append(f"| `{option.name}` | {default_value} | {comment} |")
  return "\n".join(lines) + "\n"


def read_help(name: str) -> str:
  """Returns the output of `bamboo NAME --help`; call it in a forked child."""
  sys.argv = [name, "--help"]
  output = io.StringIO()
  with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
    runpy.run_module(f"bamboo_jax.launch.{name}", run_name="__main__", alter_sys=True)
  return output.getvalue()


def render_command(name: str, text: str) -> str:
  """Returns a section in Markdown from the help of a command.

  Examples become blocks of code, flags a list, and paragraphs one line each.
  """
  body, _, flags = text.partition("\nflags:\n")
  parts = [f"### bamboo {name}"]
  for part in body.strip().split("\n\n"):
    is_code = part.startswith("bamboo ")
    parts.append(f"```\n{part}\n```" if is_code else part.replace("\n", " "))
  flags = re.sub(r"\n {4}", " ", flags.strip("\n"))
  flags = re.sub(r"^  (\S+): ", r"* `\1`: ", flags, flags=re.MULTILINE)
  parts.append(re.sub(r":\n(?=[*])", ":\n\n", flags))
  return "\n\n".join(filter(None, parts)) + "\n"


def _all_commands() -> str:
  commands = _bamboo.read_summaries()
  # Each command is a child, with flags of its own; they share `_cli`.
  with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
    texts = pool.map(read_help, commands, chunksize=1)
    pool.close()  # Else the last child may get a SIGTERM.
    pool.join()
  table = ["| command | what |", "| --- | --- |"]
  for name, summary in commands.items():
    table.append(f"| [{name}](#bamboo-{name}) | {summary} |")
  sections = map(render_command, commands, texts)
  return "\n".join([*table, "", *sections])


def _all_options() -> str:
  return render_options([*config.list_options(config.Config)])


def read_code(name: str) -> str:
  """Returns a block with a file, or with a definition: `FILE, def NAME`."""
  path, _, line = name.partition(", ")
  text = (_ROOT / path).read_text()
  if line:
    (node,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and f"def {node.name}" == line
    )
    text = ast.get_source_segment(text, node) or ""
  return f"```python\n{text.strip()}\n```\n"


def read_digits(name: str) -> str:
  """Returns a table of figures of others beside ours: `FILE`, or `FILE, STEP_TIMES`.

  It has a column for each model, or for each probability of a loss.
  """
  path, _, kind = name.partition(", ")
  table: dict[tuple[str, ...], dict[str, str]] = {}
  heads: dict[str, None] = {}
  for row in csv.DictReader((_ROOT / path).read_text().splitlines()):
    if "system" in row:
      trace, head, system, *values, note = row.values()
      keys = {"trace": trace, "system": system}
      note = "\\*" if note == "scan order" else note
      cell = " ".join(filter(None, (" / ".join(filter(None, values)), note)))
    else:
      step_times, figure, probability, theirs, ours, interval = row.values()
      if step_times != kind:
        continue
      keys, head = {"figure": figure}, f"p = {probability}" if probability else "on demand"
      cell = f"{theirs or '–'} / {ours}{f' ± {interval}' if interval else ''}"
    heads[head] = None
    table.setdefault(tuple(keys.values()), {})[head] = cell
  lines = [[*keys, *heads], ["---"] * (len(keys) + len(heads))]
  lines += [[*key, *(cells.get(head, "–") for head in heads)] for key, cells in table.items()]
  return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def link_pages(text: str) -> str:
  """Returns text of a page in docs/reference/ with mentions of pages linked.

  The code mentions a page by its path, `docs/guides/cluster.md`.
  """
  return re.sub(r"`?docs/([\w/]*?)(\w+)\.md`?", r"[\2](../\1\2.md)", text)


@functools.cache
def _render(name: str) -> str:
  """Returns the part of that name."""
  if name == "options":
    return link_pages(_all_options())
  if name == "commands":
    return link_pages(_all_commands())
  return read_digits(name) if ".csv" in name else read_code(name)


def fill(page: str) -> str:
  """Returns the text of a page with its parts as the code is now."""
  return _PART.sub(lambda m: f"{m[1]}{m[2]}\n{_render(m[1])}\n", page)


def main(arguments: Sequence[str]) -> None:
  """Writes the pages that differ, or names them."""
  os.chdir(_ROOT)  # Help names pages as seen from here.
  changed = []
  for path in sorted(_DOCS.rglob("*.md")):
    before = path.read_text()
    if (text := fill(before)) != before:
      changed.append(str(path.relative_to(_ROOT)))
      if not arguments:
        path.write_text(text)
  print(*changed, sep="\n")
  if arguments and changed:
    sys.exit("error: run `python docs/generated.py`")


if __name__ == "__main__":
  main(sys.argv[1:])
