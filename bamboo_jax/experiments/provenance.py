"""The inputs of a result: versions of code and libraries; `provenance.json` beside it.

A result that a sweep keeps, for when it goes on, is named after all that it depends on: the
job, and code and files that the job uses.
"""

from collections.abc import Sequence
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import pathlib
import pickle
import platform
import re
import shlex
import subprocess
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import packaged

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
# Beside the package in a clone, and within it once installed.
_BESIDE = ("benchmarks", "configs", "launch", "reproductions", "tests")
_CODE = [_PACKAGE]
if not (_PACKAGE / "launch").is_dir():
  _CODE += [_PACKAGE.parent / name for name in _BESIDE]
_LIBRARIES = ("jax", "ml_collections", "numpy", "scipy")


def write(
    workdir: pathlib.Path, *, command: Sequence[str], config: str, traces: Sequence[str]
) -> None:
  """Writes `provenance.json`; `config` is JSON, `traces` are files.

  Raises `OSError` if the trace cannot be read, or the file not be written.
  """
  found = {
      "command": shlex.join(command),
      "config": json.loads(config),
      "versions": versions(),
      "commit": _commit(),
      "traces": {
          name: hashlib.sha256(packaged.find_file(name).read_bytes()).hexdigest() for name in traces
      },
  }
  text = json.dumps(found, indent=2) + "\n"
  base.write_atomically(workdir / "provenance.json", text)


@functools.cache
def versions() -> dict[str, str]:
  """Returns the versions of code and libraries, on which results depend."""
  code = hashlib.sha256()
  for folder in _CODE:
    for path in sorted(folder.rglob("*.py")):
      code.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
  return {
      "bamboo_jax": f"code {code.hexdigest()[:8]}",
      "Python": platform.python_version(),
      **{name: importlib.metadata.version(name) for name in _LIBRARIES},
  }


def _commit() -> str | None:
  """Returns the commit of this code, with "+" if files differ from it.

  None if the code is not in a repository of its own, or git is missing.
  """
  root = _PACKAGE.parent
  if not (root / ".git").exists():
    return None
  ask = lambda *arguments: subprocess.check_output(
      ["git", *arguments], cwd=root, stderr=subprocess.DEVNULL, text=True
  ).strip()
  try:
    commit = ask("rev-parse", "HEAD")
    changed = ask("status", "--porcelain", "--untracked-files=no")
  except (OSError, subprocess.CalledProcessError):
    return None
  return commit + "+" * bool(changed)


_MAX_READ_BYTES = 2**26
_NAMES = re.compile(r"[\w./+-]+[.]\w+|(?<=')[^'\n]+(?=')")  # Perhaps of files.


def name_results(jobs: Sequence[str]) -> list[str]:
  """Returns the name of the result of each job, which has the content of files that it names."""
  read = functools.cache(_digest_named)
  names = []
  for job in jobs:
    named = itertools.chain.from_iterable(map(read, _NAMES.findall(job)))
    names.append(hashlib.sha256(f"{job} {sorted({*named})}".encode()).hexdigest())
  return names


def read_result(path: pathlib.Path) -> Any:
  """Returns a result.

  Raises `ValueError` if others can have written it: reading it runs what is in
  the file.
  """
  with open(path, "rb") as file:
    if danger := base.find_danger(os.fstat(file.fileno())):
      raise ValueError(
          f"The result {path} is not read: {danger}. Remove it, or name " "another --workdir."
      )
    return pickle.load(file)


def _digest_named(name: str) -> Sequence[str]:
  """Returns a hash of a file, if it is one; of code with its neighbours."""
  try:
    path = packaged.find_file(name)
    if not path.is_file():
      return ()
  except OSError:  # It is too long for a name.
    return ()
  if path.suffix != ".py":
    return [_digest(path)]
  return [_digest(file) for file in path.resolve().parent.glob("*.py")]


def _digest(path: pathlib.Path) -> str:
  """Returns name and hash of a file; if it is large, size and time."""
  status = path.stat()
  if status.st_size > _MAX_READ_BYTES:
    return f"{path.name} {status.st_size} {status.st_mtime_ns}"
  return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
