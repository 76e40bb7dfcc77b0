r"""Draws one-token faults at random, and tells which of them no test notices.

python -m tests.mutate --paths bamboo_jax/schedule --count=30 --seed=0

Each fault is made in a copy of the repository (in build/mutants), where the tests nearest
to the module by imports run until one fails or hangs, the fast ones first. Messages, logs,
annotations, asserts and docstrings are left alone.

Prints a line per fault, with the test that noticed it, and `mutants=N killed=K
kill_rate=R` at the end. Lines are kept in build/mutants/log.txt: a fault in it is not tried
again, but with `--again` if it was alive. A draw depends on a fault's own line only, so that
it outlives other changes.
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
import os
import pathlib
import shutil
import signal
import sys
import time
import zlib

import pytest

from tests import folders, samples

_ROOT = folders.ROOT
_PAIRS = "Lt GtE, Gt LtE, Eq NotEq, In NotIn, Is IsNot, Add Sub, And Or"
_FLIPS = {
    getattr(ast, a): getattr(ast, b)
    for pair in _PAIRS.split(", ")
    for a, b in (pair.split(), reversed(pair.split()))
}
_TEXTS = (ast.JoinedStr, ast.Assert, ast.Raise, ast.Import, ast.ImportFrom)
_NOT_RUN = ("annotation", "returns", "decorator_list")
_COPY = _ROOT / "build" / "mutants" / "repository"
_LOG = _COPY.parent / "log.txt"
_ALIVE = "ALIVE"
_MOST_TESTS, _MOST_SECS, _SLOWDOWN = 8, 180, 4
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "jax", "hypothesis", "flax", "chex"])


@dataclasses.dataclass(frozen=True)
class Mutant:
  """A file with one fault.

  Attributes:
    path: The file.
    line: Where the fault is.
    what: The text that was replaced, and the one that replaces it.
    source: The file with the fault.
    key: Tells mutants of a file apart, wherever their line is.
  """

  path: str
  line: int
  what: str
  source: str
  key: str

  def __str__(self):
    return f"{self.path}:{self.line}: {self.what}"


def find_mutants(path):
  """Yields the mutants of a file of the repository."""
  source = (_ROOT / path).read_text()
  lines = source.splitlines(keepends=True)
  starts = [0, *itertools.accumulate(map(len, lines))]
  for node, text in _faults(ast.parse(source)):
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    what = " ".join(f"{source[start:end]}  ->  {text}".split())
    wrong = source[:start] + text + source[end:]
    key = f"{lines[node.lineno - 1].strip()} {node.col_offset} {what}"
    yield Mutant(path, node.lineno, what, wrong, key)


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
  """Returns the modules that each file imports; those of the library without `bamboo_jax`."""
  tops = ("bamboo_jax", "benchmarks", "reproductions", "tests")
  paths = [path for top in tops for path in (_ROOT / top).rglob("*.py")]
  return {
      path.relative_to(_ROOT).as_posix(): {
          f"{node.module}.{alias.name}".removeprefix("bamboo_jax.")
          for node in ast.walk(ast.parse(path.read_text()))
          if isinstance(node, ast.ImportFrom)
          for alias in node.names
      }
      for path in sorted(paths)
  }


def find_tests(path, within=""):
  """Yields the test files that reach a module, the nearest group first."""
  own = f"tests/{path.removeprefix('bamboo_jax/').split('/')[0]}/"
  seen, files, left = set(), {path}, _MOST_TESTS
  while files and left > 0:
    seen |= files
    modules = {f.removesuffix(".py").replace("/", ".").removeprefix("bamboo_jax.") for f in files}
    files = {f for f, names in _imports().items() if names & modules} - seen
    found = sorted(f for f in files if f.endswith("_test.py") and within in f)
    for is_own in (True, False):
      group = [f for f in found if f.startswith(own) is is_own][:left]
      left -= len(group)
      yield group


def find_near(paths):
  """Returns the tests that import a file, or what imports it, or are one."""
  found = {}
  for path in map(pathlib.Path, paths):
    name = os.path.relpath(path.resolve(), _ROOT)
    if name not in _imports():
      sys.exit(f"error: {path} is no Python file of the library or its tests.")
    own = [name] if name.endswith("_test.py") else []
    groups = itertools.islice(find_tests(name), 4)  # Two steps of imports.
    found |= dict.fromkeys(itertools.chain(own, *groups))
  if not found:
    sys.exit(f"error: no test imports {', '.join(paths)}.")
  return [*found]


def _pytest(folder, test):
  """Runs in a process of its own; its exit code tells whether a test fails."""
  os.setsid()
  os.chdir(folder)
  for name in [n for n in sys.modules if n.split(".")[0] == "tests"]:
    del sys.modules[name]
  sys.path[:] = [folder] + [p for p in sys.path if p not in ("", str(_ROOT))]
  os.environ["PYTHONPATH"] = folder
  sys.dont_write_bytecode = False  # Compiling takes longer than most tests.
  null = os.open(os.devnull, os.O_RDWR)
  for stream in range(3):
    os.dup2(null, stream)
  sys.exit(int(pytest.main(["-xqp", "no:cacheprovider", test])))


def _run(test, limit_secs):
  """Returns whether a test file passes, and how long it took."""
  start = time.monotonic()
  process = _CONTEXT.Process(target=_pytest, args=(str(_COPY), test))
  process.start()
  process.join(limit_secs)
  passes = process.exitcode == 0
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)  # Also what it has left behind.
  process.join()
  return passes, time.monotonic() - start


@functools.cache
def _secs(test):
  """Returns how long a test file takes without a fault, None if not green."""
  passes, took = _run(test, _MOST_SECS)
  if not passes:
    print(f"{test} is too slow, or red without a fault", flush=True)
  return took if passes else None


def _find_killer(mutant, within):
  """Returns a test near the mutant that fails, or None."""
  path, source = _COPY / mutant.path, (_ROOT / mutant.path).read_text()
  for tests in find_tests(mutant.path, within):
    for test in sorted(filter(_secs, tests), key=_secs):
      path.write_text(mutant.source)
      number = zlib.crc32(mutant.source.encode())
      os.utime(path, (number, number))  # Nothing compiled fits it.
      passes, _ = _run(test, _SLOWDOWN * _secs(test) + 10)
      path.write_text(source)
      if not passes:
        return test
  return None


def draw(paths, *, count, seed):
  """Returns `count` of the mutants of all files that start with `paths`."""
  drawn = [
      mutant
      for path in _imports()
      if path.startswith(tuple(paths))
      for mutant in find_mutants(path)
  ]
  drawn.sort(key=lambda m: zlib.crc32(f"{seed} {m.path} {m.key}".encode()))
  return drawn[:count]


def _read_log(again):
  lines = _LOG.read_text().splitlines() if _LOG.exists() else []
  verdicts = dict(reversed(line.split(" ", 1)) for line in lines)
  return {what: verdict for what, verdict in verdicts.items() if verdict != _ALIVE or not again}


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--paths", nargs="+")
  parser.add_argument("--near", nargs="+", help="Only print tests of files.")
  parser.add_argument("--count", type=int, default=30)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--tests", default="", help="Part of the tests' paths.")
  parser.add_argument("--again", action="store_true")
  args = parser.parse_args()
  if args.near:
    print(*find_near(args.near), sep="\n")
    return
  if not args.paths:
    parser.error("--paths is needed")
  samples.choose("0", is_all=False)  # As a fault is tried, and without it.
  ignored = shutil.ignore_patterns(".*", "__pycache__", "runs", "build")
  shutil.copytree(_ROOT, _COPY, ignore=ignored, symlinks=True, dirs_exist_ok=True)
  verdicts = _read_log(args.again)
  drawn = draw(args.paths, count=args.count, seed=args.seed)
  killed = 0
  for mutant in drawn:
    verdict = verdicts.get(str(mutant))
    if verdict is None:
      verdict = _find_killer(mutant, args.tests) or _ALIVE
      with _LOG.open("a") as log:
        log.write(f"{verdict} {mutant}\n")
    killed += verdict != _ALIVE
    print(verdict, mutant, flush=True)
  rate = f"{killed / len(drawn):.1%}" if drawn else "none"
  print(f"mutants={len(drawn)} killed={killed} kill_rate={rate}")


if __name__ == "__main__":
  main()
