"""The inputs of a result: versions of code and libraries; `provenance.json` beside it."""

from collections.abc import Sequence
import functools
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import shlex
import subprocess

from bamboo_jax import base
from bamboo_jax.base import packaged

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
# Beside the package in a clone, and within it once installed.
_BESIDE = ("benchmarks", "configs", "launch", "reproductions", "tests")
CODE = [_PACKAGE]
if not (_PACKAGE / "launch").is_dir():
  CODE += [_PACKAGE.parent / name for name in _BESIDE]
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
  for folder in CODE:
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
