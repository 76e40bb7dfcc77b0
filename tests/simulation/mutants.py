r"""Puts faults back into the control plane, and finds them by exploring.

python -m tests.simulation.mutants [--seeds=1000] [NAME ...]

Each is made in a copy of the repository. Prints for each the mode, the seed of
the first history that violates an invariant, and which; the last line is
`mutants=N found=K`. A few are found by no history, for the reason beside them;
instead of a mode they name the test that fails.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from tests.simulation import mutants_of_new, mutants_of_old

_ROOT = pathlib.Path(__file__).resolve().parents[2]

# Name: mode, or a test; file, text, and what it becomes, once or more.
MUTANTS = mutants_of_old.MUTANTS | mutants_of_new.MUTANTS


def find(name: str, num_seeds: int) -> str:
  """Returns the line of the first violation, "" if there is none."""
  mode, *edits = MUTANTS[name]
  with tempfile.TemporaryDirectory() as folder:
    for part in ("bamboo_jax", "configs", "launch", "tests"):
      ignored = shutil.ignore_patterns("__pycache__")
      shutil.copytree(_ROOT / part, f"{folder}/{part}", ignore=ignored)
    for path, text, fault in edits:
      file = pathlib.Path(folder, path)
      source = file.read_text()
      assert source.count(text) == 1, f"{name}: {path} has changed"
      file.write_text(source.replace(text, fault))
    if mode.startswith("tests/"):
      done = _run(folder, "pytest", "-q", "-x", "-n0", mode)
      failed = [t for t in done.stdout.splitlines() if t.startswith("FAILED")]
      return f"{failed[0]}" if failed else ""
    done = _run(
        folder,
        *("launch.explore", f"--mode={mode}", f"--seeds={num_seeds}"),
        *("--first", "--noshrink"),
    )
  assert "histories=" in done.stdout, done.stderr
  found = [line for line in done.stdout.splitlines() if line[:5] == "seed="]
  return f"{mode} {found[0]}" if found else ""


def _run(folder: str, *command: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
      [sys.executable, "-m", *command],
      cwd=folder,
      env={**os.environ, "PYTHONPATH": folder},
      capture_output=True,
      text=True,
      check=False,
  )


def main() -> None:
  """Tries all, or those named."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--seeds", type=int, default=1000)
  parser.add_argument("names", nargs="*")
  args = parser.parse_args()
  names = args.names or list(MUTANTS)
  num_found = 0
  for name in names:
    line = find(name, args.seeds)
    num_found += bool(line)
    print(f"{name}: {line or 'not found'}", flush=True)
  print(f"mutants={len(names)} found={num_found}")


if __name__ == "__main__":
  main()
