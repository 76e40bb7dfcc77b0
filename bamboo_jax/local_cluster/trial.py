"""Runs of `launch.cluster` that end when enough has been seen."""

from collections.abc import Callable, Sequence
import pathlib
import signal
import subprocess
import sys
import time

from bamboo_jax.metrics import jsonl
from bamboo_jax.report import run_times

_ENDLESS = 10**9  # Steps of a run that ends by other means.
_POLL_SECS = 0.5
# Before a loss, and after a join; workers compile beside the first steps.
_FIRST_SECS, _LATER_SECS = 40.0, 20.0
_START_SECS = 600.0  # That a cluster may take to its first step.


def run(
    arguments: Sequence[str], *, workdir: pathlib.Path, secs: float
) -> run_times.RunTimes:
  """Runs a cluster for `secs` from its first step on; returns its times.

  Raises:
    ValueError: It has ended before, or not in time; says where its logs are.
  """

  def is_over(lines: Sequence[jsonl.Line]) -> bool:
    ends = [line["account"]["secs"] for line in lines if "event" not in line]
    return bool(ends) and ends[-1] - ends[0] >= secs

  return _run(arguments, workdir, is_over, timeout_secs=_START_SECS + secs)


def calibrate(
    arguments: Sequence[str], *, workdir: pathlib.Path, num_nodes: int
) -> run_times.RunTimes:
  """Runs a cluster that loses a node, in whose place another comes.

  Raises:
    ValueError: As `run`.
  """
  trace, at_ms = workdir / "trace.csv", round(1e3 * _FIRST_SECS)
  workdir.mkdir(parents=True, exist_ok=True)
  trace.write_text(
      "".join(f"0,add,a/{node}\n" for node in range(num_nodes))
      + f"{at_ms},remove,a/{num_nodes - 1}\n{at_ms},add,a/{num_nodes}\n"
  )

  def is_over(lines: Sequence[jsonl.Line]) -> bool:
    joins = [i for i, l in enumerate(lines) if l.get("event") == "join"]
    later = lines[joins[-1] :] if joins else ()
    steps = [line["step_ms"] for line in later if "event" not in line]
    return sum(steps) > 1e3 * _LATER_SECS

  arguments = [*arguments, f"--trace={trace}"]
  return _run(arguments, workdir, is_over, timeout_secs=2 * _START_SECS)


def _run(
    arguments: Sequence[str],
    workdir: pathlib.Path,
    is_over: Callable[[Sequence[jsonl.Line]], bool],
    timeout_secs: float,
) -> run_times.RunTimes:
  workdir.mkdir(parents=True, exist_ok=True)
  command = [sys.executable, "-m", "launch.cluster", *arguments]
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
      process.send_signal(signal.SIGINT)  # It ends all of its processes.
      process.wait()
  return run_times.read(workdir)
