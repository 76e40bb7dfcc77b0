"""Runs of `bamboo cluster` that end after enough measurements."""

from collections.abc import Callable, Sequence
import pathlib
import shlex
import signal
import subprocess
import sys
import time

from bamboo_jax.metrics import jsonl
from bamboo_jax.report import run_times

_ENDLESS = 10**9  # Number of steps of a run that is ended from outside.
_POLL_SECS = 0.5
# Workers compile beside the first steps, and booting nodes slow the others.
_FIRST_SECS, _LATER_SECS = 40, 20
_APART_SECS = 5  # Two newcomers.
_START_SECS = 600.0  # Time limit of a cluster's first step.


def run(arguments: Sequence[str], *, workdir: pathlib.Path, secs: float) -> run_times.RunTimes:
  """Runs a cluster for `secs` from its first step on; returns its times.

  Raises:
    ValueError: It ended too early or too late, then the message names its logs;
      or the folder has a run already.
  """

  def is_over(lines: Sequence[jsonl.Line]) -> bool:
    ends = [line["account"]["secs"] for line in lines if "event" not in line]
    return bool(ends) and ends[-1] - ends[0] >= secs

  return _run(arguments, workdir, is_over, timeout_secs=_START_SECS + secs)


def check_new(workdir: pathlib.Path) -> None:
  """Raises `ValueError` if `workdir` has a run already."""
  if (workdir / "metrics.jsonl").exists():
    raise ValueError(
        f"{workdir} has a run, which would be taken for the one to measure; "
        "remove it, or name another folder."
    )


def calibrate(
    arguments: Sequence[str], *, workdir: pathlib.Path, num_nodes: int, num_pipelines: int
) -> run_times.RunTimes:
  """Runs a cluster that loses a node and gets another one; returns its times.

  With several pipelines it then loses one of them, by the death of two
  neighbours, which are replaced one after the other. Raises as `run`.
  """
  events = [f"0,add,a/{node}" for node in range(num_nodes)]
  victims, secs, num_new = [[num_nodes - 1]], _FIRST_SECS, 0
  if num_pipelines > 1:
    victims.append([0, 1])
  for gone in victims:
    for node in gone:
      events.append(f"{1000 * secs},remove,a/{node}")
      secs += _LATER_SECS
    for _ in gone:
      events.append(f"{1000 * secs},add,a/{num_nodes + num_new}")
      secs += _APART_SECS
      num_new += 1
    secs += 2 * _LATER_SECS  # Also to boot.
  check_new(workdir)
  trace = workdir / "trace.csv"
  workdir.mkdir(parents=True, exist_ok=True)
  trace.write_text("".join(f"{event}\n" for event in events))

  def is_over(lines: Sequence[jsonl.Line]) -> bool:
    joins = [i for i, l in enumerate(lines) if l.get("event") == "join"]
    if sum(len(lines[i]["boot_secs"]) for i in joins) < num_new:
      return False
    steps = [l["step_ms"] for l in lines[joins[-1] :] if "event" not in l]
    return bool(sum(steps) > 1e3 * _LATER_SECS)

  arguments = [*arguments, f"--trace={trace}"]
  return _run(arguments, workdir, is_over, timeout_secs=2 * _START_SECS)


def profile(path: pathlib.Path, arguments: Sequence[str]) -> str:
  """Runs `bamboo profile`, which shows its progress; returns its file.

  Raises `ValueError` if it fails.
  """
  command = [sys.executable, "-m", "bamboo_jax.launch.profile", *arguments]
  status = subprocess.run([*command, f"--out={path}"]).returncode
  if status:
    raise ValueError(
        f"Nothing was measured: {shlex.join(command)} ended with status "
        f"{status}; its output is above."
    )
  return str(path)


def _run(
    arguments: Sequence[str],
    workdir: pathlib.Path,
    is_over: Callable[[Sequence[jsonl.Line]], bool],
    timeout_secs: float,
) -> run_times.RunTimes:
  check_new(workdir)
  workdir.mkdir(parents=True, exist_ok=True)
  command = [sys.executable, "-m", "bamboo_jax.launch.cluster", *arguments]
  command += [f"--config.num_steps={_ENDLESS}", f"--workdir={workdir}"]
  end_secs, path = time.monotonic() + timeout_secs, workdir / "metrics.jsonl"
  with open(workdir / "cluster.log", "w") as log:
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
      while not (path.exists() and is_over(jsonl.read_lines(path))):
        if process.poll() is not None or time.monotonic() > end_secs:
          raise ValueError(f"The cluster has ended early; see {log.name}.")
        time.sleep(_POLL_SECS)
    finally:
      # Two signals end it, and all of its processes, at once. A process just
      # started in the background of a script would ignore SIGINT.
      process.send_signal(signal.SIGINT)
      process.terminate()
      process.wait()
  return run_times.read(workdir)
