r"""Makes faults in the control plane and the transport, and finds them by exploring.

python -m tests.explorer.mutants [--seeds=1000] [NAME ...]

Each is made in a copy of the repository; `mutants.txt` lists them. Prints for each the mode,
the seed of the first history with a violation, and which; the last line is `mutants=N found=K`.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def read() -> dict[str, tuple[str, list[dict[str, str]]]]:
  """Returns the mode and the edits of each mutant, by name.

  An edit has the path of a file ("@"), lines that are there once ("-"), and those that
  replace them ("+").
  """
  mutants: dict[str, tuple[str, list[dict[str, str]]]] = {}
  for line in pathlib.Path(__file__).with_suffix(".txt").read_text().splitlines():
    mark, text = line[0], line[1:]
    if mark == "#":
      name, mode = text.split()
      mutants[name] = mode, (edits := [])
    elif mark == "@":
      edits.append({"@": text.strip()})
    else:
      before = edits[-1].get(mark)
      edits[-1][mark] = text if before is None else f"{before}\n{text}"
  return mutants


def find(mode: str, edits: list[dict[str, str]], num_seeds: int) -> str:
  """Returns the line of the first violation, "" if there is none."""
  with tempfile.TemporaryDirectory() as folder:
    for part in ("bamboo_jax", "tests"):
      ignored = shutil.ignore_patterns("__pycache__")
      shutil.copytree(_ROOT / part, f"{folder}/{part}", ignore=ignored)
    for edit in edits:
      file = pathlib.Path(folder, edit["@"])
      file.write_text(file.read_text().replace(edit["-"], edit.get("+", "")))
    options = f"--mode={mode} --seeds={num_seeds} --first --noshrink".split()
    done = subprocess.run(
        [sys.executable, "-m", "tests.explorer", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=False,
    )
  assert "histories=" in done.stdout, done.stderr
  found = [line for line in done.stdout.splitlines() if line.startswith("seed=")]
  return f"{mode} {found[0]}" if found else ""


def main() -> None:
  """Tries all, or those named."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--seeds", type=int, default=1000)
  parser.add_argument("names", nargs="*")
  args = parser.parse_args()
  mutants = read()
  found = 0
  for name in args.names or mutants:
    line = find(*mutants[name], args.seeds)
    found += bool(line)
    print(f"{name}: {line or 'not found'}", flush=True)
  print(f"mutants={len(args.names or mutants)} found={found}")


if __name__ == "__main__":
  main()
