"""Runs one check in a process of its own.

A GPU process takes most of the memory of the device when it starts and reads
XLA flags once, and a check that goes wrong may end its process. So the process
that asks for checks starts no JAX itself.
"""

from collections.abc import Sequence
import importlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import traceback

from bamboo_jax import base
from launch.checks import finding as finding_lib
from launch.checks import settings as settings_lib

Finding = finding_lib.Finding

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_check(
    name: str,
    settings: settings_lib.Settings,
    *,
    xla_flags: str = "",
    timeout_secs: float,
) -> Finding:
  """Returns what a check found; blocks. Whatever goes wrong is a problem.

  Args:
    name: Module of this package with a function `run(settings) -> Finding`.
    settings: What to check.
    xla_flags: Added to the XLA flags of the environment.
    timeout_secs: How long it may take.
  """
  flags = f"{os.environ.get('XLA_FLAGS', '')} {xla_flags}".strip()
  with tempfile.TemporaryDirectory() as folder:
    answer = pathlib.Path(folder) / "finding.json"
    problem = run_command(
        [
            *(sys.executable, "-m", "launch.checks.child"),
            *(name, settings.to_json(), str(answer)),
        ],
        env=os.environ | {"XLA_FLAGS": flags},
        timeout_secs=timeout_secs,
    )
    if answer.exists():
      return Finding.from_json(answer.read_text())
    return Finding(problems=[problem or "it ended without an answer"])


def run_command(
    command: Sequence[str], *, env: dict[str, str], timeout_secs: float
) -> str | None:
  """Runs a command to its end; returns what went wrong, or None.

  Its output is not shown; of a crash the last lines are returned. Does not
  leave the command running, whatever happens here.
  """
  process = subprocess.Popen(
      command,
      cwd=_ROOT,
      env=env,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      errors="replace",
      start_new_session=True,
  )
  with process:
    try:
      output, _ = process.communicate(timeout=timeout_secs)
    except subprocess.TimeoutExpired:
      return f"not finished after {timeout_secs:.0f} s"
    finally:
      if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
  if process.returncode == 0:
    return None
  said = [line for line in output.splitlines() if not line.startswith("    @")]
  tail = " | ".join(line.strip() for line in said[-3:] if line.strip())
  return f"exit code {process.returncode}: {tail[-600:]}"


def main(name: str, settings_json: str, answer: str) -> None:
  """Runs the check `name` and writes its finding to the file `answer`."""
  try:
    check = importlib.import_module(f"launch.checks.{name}")
    found = check.run(settings_lib.Settings.from_json(settings_json))
  except Exception as error:  # The next check is to run whatever it was.
    traceback.print_exc()
    found = Finding(problems=[finding_lib.describe(error)])
  base.write_atomically(answer, found.to_json())


if __name__ == "__main__":
  main(*sys.argv[1:])
