"""Names in the pages on top and in docs/ are those of files and definitions."""

import ast
import pathlib
import re
from typing import Any

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.cli import listing
from bamboo_jax.configs import default
from bamboo_jax.configs.sim import compare

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_LIBRARY = _ROOT / "bamboo_jax"
_PAGES = (*sorted(_ROOT.glob("*.md")), *sorted((_ROOT / "docs").rglob("*.md")))
# A file of the repository, or a module as the library writes it: `plan.rows`.
_FILE = re.compile(r"`([\w.]+(?:/[\w.-]+)+\.(?:py|md|csv|sh|yaml|toml|cfg))`")
_MODULE = re.compile(r"`((?:bamboo_jax\.)?[a-z_]+(?:\.\w+)+)`")
# A command that begins a line or what stands between backticks.
_COMMAND = re.compile(r"(?:^|`)(?:\S*/)?bamboo ([\w-]+)", re.MULTILINE)
_SUFFIXES = ("py", "csv", "html", "json", "jsonl", "log", "png")
# A row of the map: question, file, definition.
_ROW = re.compile(r"^\|[^|]+\|\s*`([\w/.]+)`\s*\|\s*`([\w.]+)`", re.MULTILINE)


def find_missing(text: str) -> list[str]:
  """Returns the names of files and definitions in `text` that do not exist."""
  missing = [
      name
      for name in _FILE.findall(text)
      if not ((_ROOT / name).exists() or (_LIBRARY / name).exists())
      and name.split("/")[0] in _tops()
  ]
  missing += [
      name
      for name in _MODULE.findall(text)
      if not (_is_defined(name) or _is_option(name))
  ]
  commands = listing.read_summaries(_ROOT / "launch")
  return missing + [
      f"bamboo {name}"
      for name in _COMMAND.findall(text)
      if name not in (*commands, "--help", "COMMAND", "NAME")
  ]


def _tops() -> set[str]:
  return {p.name for top in (_ROOT, _LIBRARY) for p in top.iterdir()}


def _is_option(name: str) -> bool:
  """Whether a run or a simulation has an option of that name."""
  configs = (default.get_config(), compare.get_config())
  return any(_has(c, name.removeprefix("config.")) for c in configs)


def _has(value: Any, name: str) -> bool:
  for word in name.split("."):
    if word in base.OPTIONS:
      return True
    if not hasattr(value, "keys") or word not in value:
      return False
    value = value[word]
  return True


def _is_defined(name: str) -> bool:
  """Whether a dotted name is that of a module or of what stands in one."""
  words = name.removeprefix("bamboo_jax.").split(".")
  if words[-1] in _SUFFIXES:
    return True  # A file that a command leaves.
  place = _LIBRARY
  if words[0] in ("benchmarks", "launch", "reproductions", "tests"):
    place, words = _ROOT / words[0], words[1:]
  elif not (_LIBRARY / words[0] / "__init__.py").exists():
    return True  # Not ours, such as an option of the config.
  while words and (place / words[0]).is_dir():
    place, words = place / words[0], words[1:]
  if not words:
    return True
  module = place / f"{words[0]}.py"
  if not module.exists():
    return _defines(place / "__init__.py", words)
  return not words[1:] or _defines(module, words[1:])


def _defines(module: pathlib.Path, words: list[str]) -> bool:
  """Whether a module defines `words`: a name, or a class and its attribute."""
  if not module.exists():
    return False
  body = ast.parse(module.read_text()).body
  for word in words:
    found = [n for n in body if word in _names(n)]
    if not found:
      return False
    body = getattr(found[0], "body", [])
    body = body + [s for f in body for s in getattr(f, "body", [])]
  return True


def _names(node: ast.stmt) -> set[str]:
  """Returns the names that a statement binds, attributes of `self` too."""
  match node:
    case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
      return {node.name}
    case ast.Assign():
      targets = node.targets
    case ast.AnnAssign():
      targets = [node.target]
    case ast.ImportFrom():
      return {alias.asname or alias.name for alias in node.names}
    case _:
      return set()
  return {
      t.id if isinstance(t, ast.Name) else t.attr
      for target in targets
      for t in (target.elts if isinstance(target, ast.Tuple) else [target])
      if isinstance(t, (ast.Name, ast.Attribute))
  }


class DocsTest(parameterized.TestCase):

  @parameterized.parameters(*_PAGES)
  def test_names_exist(self, page):
    self.assertEqual(find_missing(page.read_text()), [])

  def test_map_names_the_deciding_code(self):
    rows = _ROW.findall((_ROOT / "docs/reference/map.md").read_text())
    self.assertGreaterEqual(len(rows), 12)
    for path, name in rows:
      with self.subTest(path):
        self.assertTrue(_defines(_ROOT / path, name.split(".")), msg=name)

  @parameterized.parameters(
      ("`plan/partition.py`", 0),
      ("`plan/no_such_file.py`", 1),
      ("`recovery.decide`", 0),
      ("`recovery.decide.decide`", 0),
      ("`recovery.decide.no_such_name`", 1),
      ("`recovery.no_such_module`", 1),
      ("`config.pipeline.layout`", 0),
      ("`config.pipeline.layuot`", 1),
      ("`config.model.options.anything`", 0),
      ("`checkpoint.every_steps`", 0),
      ("`bamboo train --config=quickstart`", 0),
      ("`bamboo trian`", 1),
      (".venv/bin/bamboo trian", 1),
      ("the bamboo panda", 0),
  )
  def test_find_missing(self, text, count):
    self.assertLen(find_missing(text), count)
