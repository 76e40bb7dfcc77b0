r"""Draws one-token faults at random, and tells which of them no test notices.

python -m tests.mutate --paths bamboo_jax/schedule --count=30 --seed=0

Each fault is made in a copy of the repository, where the tests nearest to the
module run, one file at a time: those that import it, then those that import
what imports it. A fault that makes one hang counts as noticed. Messages, logs,
annotations, asserts and docstrings are left alone. Last line:
`mutants=N killed=K`.
"""

import argparse
import ast
import functools
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

_PAIRS = "Lt GtE, Gt LtE, Eq NotEq, In NotIn, Is IsNot, Add Sub, And Or"
_FLIPS = {
    getattr(ast, a): getattr(ast, b)
    for pair in _PAIRS.split(", ")
    for a, b in (pair.split(), reversed(pair.split()))
}
_TEXTS = (ast.JoinedStr, ast.Assert, ast.Raise, ast.Import, ast.ImportFrom)
_NOT_RUN = ("annotation", "returns", "decorator_list")
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_MOST_TESTS, _MOST_SECS, _SLOWDOWN = 12, 120, 4


def find_mutants(source):
  """Yields (line, source with one fault, what the fault is)."""
  starts = [0]
  for line in source.splitlines(keepends=True):
    starts.append(starts[-1] + len(line))
  for node, text in _faults(ast.parse(source)):
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    what = f"{source[start:end]}  ->  {text}"
    yield node.lineno, source[:start] + text + source[end:], what


def _faults(node):
  """Yields nodes that can be wrong, each with the text of the wrong one."""
  is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
  if is_call and ast.unparse(node).startswith("logging."):
    return
  if is_call or isinstance(node, ast.Raise | ast.AugAssign):
    yield node, "pass"
  if isinstance(node, _TEXTS):
    return
  if isinstance(node, ast.Return) and ast.unparse(node) != "return None":
    yield node, "return None"
  elif isinstance(node, ast.Constant) and type(node.value) is int:
    yield node, str(node.value + 1)
  elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
    yield node, f"({ast.unparse(node.operand)})"
  elif isinstance(node, ast.Compare) and len(node.ops) == 1:
    flipped = ast.Compare(node.left, [_flip(node.ops[0])], node.comparators)
    yield node, f"({ast.unparse(flipped)})"
  elif isinstance(node, ast.BoolOp):
    flipped = ast.BoolOp(_flip(node.op), node.values)
    yield node, f"({ast.unparse(flipped)})"
  elif isinstance(node, ast.BinOp) and type(node.op) in _FLIPS:
    flipped = ast.BinOp(node.left, _flip(node.op), node.right)
    yield node, f"({ast.unparse(flipped)})"
  for name, value in ast.iter_fields(node):
    for child in value if isinstance(value, list) else [value]:
      if isinstance(child, ast.AST) and name not in _NOT_RUN:
        yield from _faults(child)


def _flip(op):
  return _FLIPS[type(op)]()


@functools.cache
def _imports():
  """Returns the full names that each file of the repository imports."""
  paths = [
      p for top in ("bamboo_jax", "tests") for p in (_ROOT / top).rglob("*.py")
  ]
  return {
      path.relative_to(_ROOT).as_posix(): {
          f"{node.module}.{alias.name}"
          for node in ast.walk(ast.parse(path.read_text()))
          if isinstance(node, ast.ImportFrom)
          for alias in node.names
      }
      for path in sorted(paths)
  }


def find_tests(path, within=""):
  """Returns the test files that reach a module, the nearest first."""
  own, seen, files, tests = f"tests/{path.split('/')[1]}/", set(), {path}, []
  while files and len(tests) < _MOST_TESTS:
    seen |= files
    modules = {f.removesuffix(".py").replace("/", ".") for f in files}
    files = {f for f, names in _imports().items() if names & modules} - seen
    found = [f for f in sorted(files) if f.endswith("_test.py") and within in f]
    tests += sorted(found, key=lambda f: not f.startswith(own))
  return tests[:_MOST_TESTS]


def _run(folder, test, limit_secs):
  """Returns whether a test file passes, and how long it took."""
  start = time.monotonic()
  command = (sys.executable, "-m", "pytest", "-xqp", "no:cacheprovider", test)
  try:
    done = subprocess.run(
        command, cwd=folder, timeout=limit_secs, capture_output=True
    )
  except subprocess.TimeoutExpired:
    return False, limit_secs
  return done.returncode == 0, time.monotonic() - start


def _is_killed(folder, path, mutant, tests, secs, number):
  """Returns whether a test fails; `secs` holds the times without any fault."""
  source = (_ROOT / path).read_text()
  for test in tests:
    if test not in secs:
      passes, took = _run(folder, test, _MOST_SECS)
      secs[test] = took if passes else None
      if not passes:
        print(f"{test} is too slow, or red without a fault", flush=True)
    if secs[test] is None:
      continue
    (folder / path).write_text(mutant)
    os.utime(folder / path, (number, number))  # Nothing compiled fits it.
    passes, _ = _run(folder, test, _SLOWDOWN * secs[test] + 10)
    (folder / path).write_text(source)
    if not passes:
      return True
  return False


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--paths", nargs="+", required=True)
  parser.add_argument("--count", type=int, default=30)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--tests", default="", help="Part of the tests' paths.")
  args = parser.parse_args()
  drawn = [
      (path, *mutant)
      for path in _imports()
      if path.startswith(tuple(args.paths))
      for mutant in find_mutants((_ROOT / path).read_text())
  ]
  drawn = random.Random(args.seed).sample(drawn, min(args.count, len(drawn)))
  killed, secs = 0, {}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name, "repository")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "runs")
    shutil.copytree(_ROOT, folder, ignore=ignored, symlinks=True)
    for number, (path, line, mutant, what) in enumerate(drawn):
      tests = find_tests(path, args.tests)
      if _is_killed(folder, path, mutant, tests, secs, number):
        killed += 1
      else:
        print(f"{path}:{line}: {what}", flush=True)
  print(f"mutants={len(drawn)} killed={killed}")


if __name__ == "__main__":
  main()
