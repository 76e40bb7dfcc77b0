"""Like `layouts`; each is a cluster of processes, of which some are killed."""

from collections.abc import Iterator, Mapping, Sequence
import itertools
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
from typing import Any

from bamboo_jax.testing.fault_sweep import layouts as layouts_lib

_MAX_STAGES, _MAX_NODES = 4, 6
_TRACES = 0.4  # Part of the runs that play one; the others have kills.
_STEPS_PER_EVENT = 20
_SECS_PER_EVENT = 4.0  # Of a trace.
_LIMIT_SECS = 600.0
_ZONES = ("a", "a,b,c", "a,b,c")
_TAIL = 600  # Characters of the output of a run that has failed.
_KINDS = (
    *(("kill",), ("kill", "stop"), ("kill", "node", "notice")),
    ("kill", "node", "stop", "leader", "zone", "notice", "all"),
)
_CHOICES: Mapping[str, Sequence[Any]] = {
    "redundancy.spares": (0, 0, 1),
    "recovery.checkpoint": (True,),  # Who is killed is not chosen with care.
    "checkpoint.every_steps": (3, 5, 10),
}


class Clusters:
  """Runs layouts by `bamboo cluster`, with random kills or a random trace.

  Each has `num_events`. `arguments` are `--config` and its overrides; `drawn`
  are the faults of the last run.
  """

  def __init__(self, arguments: Sequence[str], *, num_events: int) -> None:
    self.drawn: Sequence[str] = ()
    self._num_events = num_events
    self._arguments = [
        *arguments,
        f"--config.num_steps={_STEPS_PER_EVENT * num_events + 1}",
        f"--config.pipeline.num_shares={layouts_lib.NUM_SHARES}",
        "--config.metrics.plots=False",
    ]

  def draw(self, count: int, *, seed: int) -> Iterator[layouts_lib.SweepLayout]:
    """Yields random layouts; the first, of one process, has no kills."""
    yield layouts_lib.SweepLayout(1, 1)
    yield from layouts_lib.draw_layouts(
        count - 1, seed=seed, max_stages=_MAX_STAGES, max_nodes=_MAX_NODES, choices=_CHOICES
    )

  def run(self, layout: layouts_lib.SweepLayout) -> str:
    """Returns the hash of the state at the end; raises `RuntimeError`."""
    command, self.drawn = ["launch.train"], ()
    settings = {
        "pipeline.num_pipelines": layout.num_pipelines,
        "pipeline.num_stages": layout.num_stages,
        "pipeline.num_microbatches": layouts_lib.NUM_MICROBATCHES // layout.num_pipelines,
        "redundancy.mode": "none",
        **dict(layout.settings),
    }
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder, "run")
      if (seed := layout.storm_seed) is not None:
        rng = random.Random(f"clusters {seed}")
        command = ["launch.cluster"]
        if rng.random() < _TRACES:
          trace = pathlib.Path(folder, "trace.csv")
          num_nodes = layout.num_pipelines * layout.num_stages
          num_nodes += settings["redundancy.spares"]
          self.drawn = draw_trace(rng, num_nodes, self._num_events)
          trace.write_text("\n".join(self.drawn))
          command.append(f"--trace={trace}")
        else:
          self.drawn = (
              f"--random_kills={self._num_events}",
              f"--kinds={','.join(rng.choice(_KINDS))}",
              f"--seed={seed}",
          )
          command += self.drawn
        command.append(f"--zones={rng.choice(_ZONES)}")
      command += [f"--workdir={workdir}", *self._arguments, *overrides]
      _call(command)
      summary = json.loads((workdir / "summary.json").read_text())
      return f"{summary['state_sha256']}"


def draw_trace(rng: random.Random, num_nodes: int, num_events: int) -> list[str]:
  """Returns the lines of a trace of `num_nodes`, which are there at its end."""
  names = (f"{'abc'[i % 3]}/{i}" for i in itertools.count())
  alive = list(itertools.islice(names, num_nodes))
  lines = [f"0,add,{name}" for name in alive]
  noticed: set[str] = set()
  millis = 0
  for _ in range(num_events):
    millis += rng.randrange(int(2000 * _SECS_PER_EVENT))
    kind = rng.choice(("add", "remove", "remove", "notice"))
    if kind == "add" and len(alive) < _MAX_NODES:
      alive.append(next(names))
      lines.append(f"{millis},add,{alive[-1]}")
    elif kind == "notice" and (left := sorted({*alive} - noticed)):
      noticed.add(name := rng.choice(left))
      lines.append(f"{millis},notice,{name}")
    elif alive:  # Perhaps nobody is there for a while.
      alive.remove(name := rng.choice(alive))
      lines.append(f"{millis},remove,{name}")
  left = len({*alive} - noticed)
  return lines + [
      f"{millis},add,{name}" for name in itertools.islice(names, max(0, num_nodes - left))
  ]


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
