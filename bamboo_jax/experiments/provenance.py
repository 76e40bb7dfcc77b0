"""The inputs of a result, in `provenance.json` beside it."""

from collections.abc import Sequence
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import shlex
import subprocess

from bamboo_jax import base
from bamboo_jax.base import packaged

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PACKAGES = ("bamboo_jax", "ml_collections", "numpy", "scipy")


def write(
    workdir: pathlib.Path, *, command: Sequence[str], config: str, traces: Sequence[str]
) -> None:
  """Writes `provenance.json`; `config` is JSON, `traces` are files.

  Raises `OSError` if the trace cannot be read, or the file not be written.
  """
  found = {
      "command": shlex.join(command),
      "config": json.loads(config),
      "versions": {"python": platform.python_version()}
      | {name: _version(name) for name in _PACKAGES},
      "commit": _commit(),
      "traces": {
          name: hashlib.sha256(packaged.find_file(name).read_bytes()).hexdigest() for name in traces
      },
  }
  text = json.dumps(found, indent=2) + "\n"
  base.write_atomically(workdir / "provenance.json", text)


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _commit() -> str | None:
  """Returns the commit of this code, with "+" if files differ from it.

  None if the code is not in a repository of its own, or git is missing.
  """
  if not (_ROOT / ".git").exists():
    return None
  ask = lambda *arguments: subprocess.check_output(
      ["git", *arguments], cwd=_ROOT, stderr=subprocess.DEVNULL, text=True
  ).strip()
  try:
    commit = ask("rev-parse", "HEAD")
    changed = ask("status", "--porcelain", "--untracked-files=no")
  except (OSError, subprocess.CalledProcessError):
    return None
  return commit + "+" * bool(changed)
