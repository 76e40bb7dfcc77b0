"""Layouts as clusters of processes, of which some are killed."""

from collections.abc import Mapping, Sequence
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
from typing import Any

from bamboo_jax import config as config_lib
from bamboo_jax.verify import layouts as layouts_lib

MAX_STAGES, MAX_NODES = 4, 6
CHOICES: Mapping[str, Sequence[Any]] = {
    "redundancy.spares": (0, 0, 1),
    "recovery.checkpoint": (True,),  # Who is killed is not chosen with care.
    "checkpoint.every_steps": (3, 5, 10),
}
_STEPS_PER_EVENT = 20
_LIMIT_SECS = 600.0
_ZONES = ("a", "a,b,c", "a,b,c")
_TAIL = 600  # Characters of the output of a run that has failed.
_KINDS = (
    *(("kill",), ("kill", "stop"), ("kill", "node", "notice")),
    ("kill", "node", "stop", "leader", "zone", "notice", "all"),
)


def run(
    layout: layouts_lib.SweepLayout | None,
    config: config_lib.Config,
    arguments: Sequence[str],
    *,
    num_events: int,
) -> str:
  """Returns the hash of the state of a cluster with random kills; None: of one process.

  `arguments` are `--config` and its overrides. Raises `RuntimeError` if the run fails.
  """
  if layout is None:
    command = ["launch.train"]
    settings = {**layouts_lib.split_batch(config), **layouts_lib.ALONE}
  else:
    rng, settings = random.Random(f"clusters {layout.number}"), dict(layout.settings)
    command = ["launch.cluster", f"--random_kills={num_events}", f"--seed={layout.number}"]
    command += [f"--kinds={','.join(rng.choice(_KINDS))}", f"--zones={rng.choice(_ZONES)}"]
  settings["num_steps"] = _STEPS_PER_EVENT * num_events + 1
  settings["metrics.plots"] = False
  command += [*arguments, *(f"--config.{key}={value}" for key, value in settings.items())]
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder, "run")
    _call([*command, f"--workdir={workdir}"])
    return f"{json.loads((workdir / 'summary.json').read_text())['state_sha256']}"


def _call(command: Sequence[str]) -> None:
  process = subprocess.Popen(
      [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  )
  try:
    output, _ = process.communicate(timeout=_LIMIT_SECS)
  except BaseException as error:  # Also an interrupt.
    for number in (signal.SIGINT, signal.SIGTERM):  # Told twice, it ends all
      process.send_signal(number)  # that it has started at once.
    output, _ = process.communicate()
    if isinstance(error, subprocess.TimeoutExpired):
      late = f"not done after {_LIMIT_SECS} s: {output[-_TAIL:]}"
      raise RuntimeError(late) from error
    raise
  if process.returncode:
    raise RuntimeError(f"exit code {process.returncode}: {output[-_TAIL:]}")
