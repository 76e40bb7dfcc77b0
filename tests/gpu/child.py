"""Runs one check in a process of its own.

A GPU process takes most of the memory of the device when it starts and reads
XLA flags once, and a check that goes wrong may end its process. So the process
that asks for checks starts no JAX itself.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
from typing import Any

from tests.gpu import settings as settings_lib
from tests.launch import commands


@dataclasses.dataclass(frozen=True)
class Found:
  """The result of one check.

  Attributes:
    values: Figures by name, plain JSON values.
    problems: What is wrong, a line each.
  """

  values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  problems: Sequence[str] = ()


Check = Callable[[settings_lib.Settings], Found]


def run(
    check: Check, settings: settings_lib.Settings, *, xla_flags: str = "", timeout_secs: float
) -> Found:
  """Returns what a check found; whatever goes wrong is a problem.

  The check is a function of a module; `xla_flags` come on top of those of the
  environment.
  """
  flags = f"{os.environ.get('XLA_FLAGS', '')} {xla_flags}".strip()
  with tempfile.TemporaryDirectory() as folder:
    answer = pathlib.Path(folder, "found.json")
    own = json.dumps(dataclasses.asdict(settings))
    command = ("-m", "tests.gpu.child", check.__module__, check.__name__, own, answer)
    problem = run_python(command, xla_flags=flags, timeout_secs=timeout_secs)
    if answer.exists():
      return Found(**json.loads(answer.read_text()))
    return Found(problems=[problem or "it ended without an answer"])


def run_python(
    arguments: Sequence[str | os.PathLike[str]], *, xla_flags: str, timeout_secs: float
) -> str | None:
  """Runs Python; returns what went wrong with its last lines, or None."""
  try:
    done = commands.run(
        *arguments,
        env=os.environ | {"XLA_FLAGS": xla_flags},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        errors="replace",
        timeout=timeout_secs,
    )
  except subprocess.TimeoutExpired:
    return f"not finished after {timeout_secs:.0f} s"
  if done.returncode == 0:
    return None
  said = [line for line in done.stdout.splitlines() if line[:5] != "    @"]
  tail = " | ".join(line.strip() for line in said[-3:] if line.strip())
  return f"exit code {done.returncode}: {tail[-600:]}"


def describe(error: BaseException) -> str:
  """Returns one line, not too long, that tells what went wrong."""
  text = " ".join(str(error).split())
  return f"{type(error).__name__}: {text}"[:400]


def main(module: str, name: str, settings: str, answer: str) -> None:
  """Runs a check and writes what it found to the file `answer`."""
  try:
    check = getattr(importlib.import_module(module), name)
    found = check(settings_lib.Settings(**json.loads(settings)))
  except Exception as error:  # Whatever it is, it is what was found.
    traceback.print_exc()
    found = Found(problems=[describe(error)])
  pathlib.Path(answer).write_text(json.dumps(dataclasses.asdict(found)))


if __name__ == "__main__":
  main(*sys.argv[1:])
