"""Imports point down, functions are short, modules say what they are for."""

import ast
import collections
from collections.abc import Iterator, Mapping
import re

from absl.testing import parameterized

from tests import folders, tables

_ROOT = folders.ROOT

# From top to bottom; the packages of a layer do not import each other.
_LAYERS = (
    ("verify",),
    ("api",),
    ("benchmarks", "reproductions"),
    ("local_cluster", "experiments", "gpu"),
    ("training",),
    ("report",),
    ("exchange",),
    ("checkpoint", "sim"),
    ("runtime", "cluster"),
    ("recovery", "accounting"),
    ("plan", "data", "net", "cli", "traces"),
    ("config",),
    ("schedule", "models", "metrics", "faults"),
    ("base",),
)
_LEVELS = {name: -i for i, layer in enumerate(_LAYERS) for name in layer}
# Packages that stand beside the library here, and within it once installed.
_BESIDE = ("benchmarks", "reproductions")

# Who else may import what; `launch` and `configs` may import everything.
_JAX = ("chex", "flax", "jax", "jaxlib", "optax", "orbax", "tensorstore")
_TRAINING = ("training", "benchmarks", "reproductions", "gpu", "verify")
_RESERVED = {name: ("models", "runtime", "checkpoint", *_TRAINING) for name in _JAX} | {
    "ml_collections": ("api", "cli", "local_cluster", "experiments", *_TRAINING),
    "configs": (),
    "launch": (),
    "tests": (),
}
# Rooms with one door: it, and what looks for faults, may import them.
_DOORS = {
    "bamboo_jax.runtime.spmd": ("bamboo_jax/runtime/spmd/", "bamboo_jax/training/setup/build.py")
}

# A module, and what it must not import: what is above it, beside it, JAX, or in no layer.
_WRONG_IMPORTS = """
base/a.py
  from bamboo_jax.plan import planner
runtime/a.py
  from bamboo_jax.cluster import views
data/a.py
  import jax.numpy
sim/a.py
  from flax import struct
runtime/a.py
  import ml_collections
plan/a.py
  from . import planner
plan/a.py
  import bamboo_jax
plan/a.py
  import bamboo_jax.misc
misc/a.py
  import os
__init__.py
  from bamboo_jax import base
training/a.py
  from launch import train
training/a.py
  from bamboo_jax.runtime import spmd
"""

# Classes of one name: the Python API documents both.
_SAME_NAME = ("Price",)


def find_violations(sources: Mapping[str, str]) -> list[str]:
  """Returns a line for each rule that a module breaks.

  Args:
    sources: Text of each module by its path, with slashes, in the repository.
  """
  found = []
  for path, text in sorted(sources.items()):
    tree = ast.parse(text, path)
    if path == "bamboo_jax/__init__.py":  # What mypy sees is not imported.
      tree.body = [
          statement
          for node in tree.body
          for statement in (node.orelse if _is_for_types(node) else [node])
      ]
    if path.endswith("/utils.py"):
      found.append(f"{path}: a module is named after its idea")
    if text.strip() and not ast.get_docstring(tree):
      found.append(f"{path}: no module docstring")
    found += [
        f"{path}:{line}: {name} may be imported by {doors[-1]} only"
        for line, name in _imported_names(tree)
        for room, doors in _DOORS.items()
        if f"{name}.".startswith(f"{room}.") and not path.startswith(doors)
    ]
    if path.startswith(("configs/", "launch/")):
      found += [
          f"{path}:{line}: once installed it is bamboo_jax.{name}"
          for line, name in _imported_names(tree)
          if name.split(".")[0] in ("configs", "launch")
      ]
    if path.split("/")[0] in ("bamboo_jax", *_BESIDE):
      found += [
          f"{path}:{line}: {problem}"
          for line, name in _imported_names(tree)
          if (problem := _import_problem(path, name))
      ]
  return found


def _is_for_types(node: ast.stmt) -> bool:
  return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
  """Yields the line and the full name of every import, wherever it stands."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield node.lineno, alias.name
    elif isinstance(node, ast.ImportFrom):
      module = "." * node.level + (node.module or "")
      for alias in node.names:
        yield node.lineno, f"{module}.{alias.name}"


def _import_problem(path: str, name: str) -> str | None:
  """Returns what is wrong with importing `name` in the library module."""
  own = path.removeprefix("bamboo_jax/").split("/")[0].removesuffix(".py")
  if own != "__init__" and own not in _LEVELS:
    return f"package {own} has no layer"
  words = name.split(".")
  if name.startswith("."):
    return "relative import"
  if words[0] != "bamboo_jax":
    if own in _RESERVED.get(words[0], (own,)):
      return None
    return f"{own} must not import {words[0]}"
  if len(words) == 1 or own == "__init__":
    return "bamboo_jax itself imports nothing and is not imported"
  if words[1] not in _LEVELS:
    return f"package {words[1]} has no layer"
  if words[1] != own and _LEVELS[words[1]] >= _LEVELS[own]:
    return f"{own} must not import {words[1]}, which is not below it"
  return None


class LayeringTest(parameterized.TestCase):

  def test_repository_keeps_the_rules(self):
    sources = {
        path.relative_to(_ROOT).as_posix(): path.read_text()
        for top in ("bamboo_jax", *_BESIDE, "configs", "launch")
        for path in sorted((_ROOT / top).rglob("*.py"))
    }
    self.assertIn("bamboo_jax/base/files.py", sources)
    self.assertEqual(find_violations(sources), [])

  def test_each_class_has_a_name_of_its_own(self):
    found = collections.defaultdict(list)
    for top in ("bamboo_jax", "launch"):
      for path in sorted((_ROOT / top).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
          if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found[node.name].append(path.relative_to(_ROOT).as_posix())
    same = {n: paths for n, paths in found.items() if len(paths) > 1}
    self.assertCountEqual(same, _SAME_NAME, msg=same)

  def test_rooms_name_what_stands_in_them(self):
    faces = (
        face
        for top in ("bamboo_jax", *_BESIDE)
        for face in sorted((_ROOT / top).rglob("__init__.py"))
    )
    for face in faces:
      modules = {path.stem for path in face.parent.glob("[a-z]*.py")}
      rooms = {path.parent.name for path in face.parent.glob("*/__init__.py")}
      named = set(re.findall(r"\w+", face.read_text()))
      with self.subTest(face.parent.name):
        self.assertEmpty((modules | rooms) - named)

  @parameterized.parameters(*tables.read(_WRONG_IMPORTS))
  def test_import(self, path, code):
    got = find_violations({f"bamboo_jax/{path}": f'"""Doc."""\nif True:\n  {code}\n'})
    self.assertLen(got, 1, msg=got)

  @parameterized.named_parameters(
      ("utils", "bamboo_jax/plan/utils.py", '"""Doc."""\n'),
      ("no_docstring", "launch/a.py", "import jax\n"),
      ("general", "launch/a.py", '"""Doc."""\nfrom launch import b\n'),
      ("sim", "configs/a.py", '"""Doc."""\nimport configs.sim\n'),
  )
  def test_module(self, path, text):
    self.assertLen(find_violations({path: text}), 1)
