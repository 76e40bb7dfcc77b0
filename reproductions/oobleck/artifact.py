"""Oobleck's evaluation against Varuna and Bamboo (SOSP'23), by its own rules.

The three are settings of one event simulator, described in our words in
`third_party/published/oobleck_simulator.md`. Throughput by number of nodes,
constants and traces are CSV files in `third_party/published`. The rules have
flaws that favour some systems (`bamboo.loop`); `simulate` keeps them.
"""

import bisect
from collections.abc import Mapping, Sequence
import csv
import dataclasses

from bamboo_jax import base
from bamboo_jax.reproductions import publish
from bamboo_jax.reproductions.bamboo import loop as artifact_loop
from bamboo_jax.traces import trace as trace_lib

SYSTEMS = ("oobleck", "varuna", "bamboo")
NUM_STAGES = 12
MIN_NODES, MAX_NODES = 15, 30  # Numbers of nodes with a known throughput.

_STUCK_MS = 10**12  # Step time where the throughput is 0.
_CHECKPOINT_EVERY = 10  # Steps.
# Models whose work was never lost on recorded traces, with Varuna.
NO_ROLLBACK = ("BERT-large", "GPT-2", "GPT-3-medium")

_USEFUL = 0.1971  # Share of Bamboo's computation that is not redundant.

# Further digits of some throughputs, by system and model.
_DIGITS = {
    ("varuna", "GPT-3-6.7b"): (5.2406, 5.0969, 4.5034, 3.9538, 3.0164),
    ("bamboo", "GPT-2"): (27.0296, 22.5246, 16.8935, 11.2623),
    ("bamboo", "BERT-large"): (119.2547, 99.3789, 74.5342, 49.6894),
}
# Varuna's restart of BERT-large after the first, by number of nodes.
_RESTART_MS = {
    "BERT-large": {15: 71_300, 27: 49_100, 28: 67_600, 29: 67_600, 30: 71_300}
    | {n: 112_000 - 3_700 * (26 - n) for n in range(16, 27)}
}


def _clip(num_nodes: int) -> int:
  """Returns the number of nodes whose figures stand for `num_nodes`."""
  return min(max(num_nodes, MIN_NODES), MAX_NODES)


@dataclasses.dataclass(frozen=True)
class Model:
  """The inputs of the evaluation for a model.

  Attributes:
    throughput: Samples per second by system, then by number of nodes. Systems
      that could not run the model are missing.
    idle_gpus: GPUs that Varuna leaves idle, by number of nodes.
    reconfigure_ms: How long nodes gather, Oobleck.
    restart_ms: Time of a restart, Varuna, checkpoint included.
    restart_ms_by_nodes: Times of later restarts, if they depend on the number
      of nodes.
    checkpoint_ms: Time of a checkpoint, Varuna.
    local_ms: How long nodes gather at the end of a step, Bamboo.
  """

  name: str
  samples_per_step: int
  throughput: Mapping[str, Mapping[int, float]]
  idle_gpus: Mapping[int, int]
  reconfigure_ms: int
  restart_ms: int
  restart_ms_by_nodes: Mapping[int, int] | None
  checkpoint_ms: int
  local_ms: int

  def step_ms(self, system: str, num_nodes: int) -> int:
    """Returns the time of a step of `system` with `num_nodes` ready."""
    samples_per_sec = self.throughput[system][_clip(num_nodes)]
    if not samples_per_sec:
      return _STUCK_MS
    return int(self.samples_per_step / samples_per_sec * 1000)


def read_models() -> dict[str, Model]:
  throughput: dict[str, dict[str, dict[int, float]]] = {}  # By model, system and nodes.
  idle: dict[str, dict[int, int]] = {}
  for row in _rows("oobleck_throughput_by_nodes.csv"):
    model, nodes = row["model"], int(row["nodes"])
    idle.setdefault(model, {})[nodes] = int(row["varuna_idle_gpus"])
    systems = throughput.setdefault(model, {})
    for system in SYSTEMS:
      if row[system] != "OOM":
        digits, value = _DIGITS.get((system, model), ()), float(row[system])
        exact = [d for d in digits if abs(d - value) < 0.006]
        systems.setdefault(system, {})[nodes] = exact[0] if exact else value
  return {
      row["model"]: Model(
          name=row["model"],
          samples_per_step=int(row["samples_per_step"]),
          throughput=throughput[row["model"]],
          idle_gpus=idle[row["model"]],
          reconfigure_ms=int(row["oobleck_reconfig_ms"]),
          # A remark may follow.
          restart_ms=int(row["varuna_restart_ms"].split()[0]),
          restart_ms_by_nodes=_RESTART_MS.get(row["model"]),
          checkpoint_ms=int(row["varuna_ckpt_ms_every_10_it"]),
          local_ms=int(row["bamboo_local_rendezvous_ms"]),
      )
      for row in _rows("oobleck_simulator_constants.csv")
  }


def read_traces() -> dict[str, trace_lib.Trace]:
  events: dict[str, list[trace_lib.Event]] = {}
  for row in _rows("oobleck_traces.csv"):
    event = trace_lib.Event(int(row["time_ms"]), row["kind"], f"node{row['node']}")
    events.setdefault(row["trace"], []).append(event)
  return {
      name: trace_lib.Trace(name, tuple(found), duration_ms=found[-1].time_ms)
      for name, found in events.items()
  }


def read_published() -> list[dict[str, str]]:
  """Returns the rows of the published table, unchanged."""
  return _rows("oobleck_simulated.csv")


def _rows(name: str) -> list[dict[str, str]]:
  with (publish.PUBLISHED / name).open(encoding="utf-8", newline="") as file:
    return list(csv.DictReader(file))


class OobleckRules:
  """Oobleck: nodes gather for a short time, and a step is lost.

  As with Varuna, every loss makes all nodes gather, even the loss of a waiting
  node; added nodes are unused until then.
  """

  num_stages = NUM_STAGES

  def __init__(self, model: Model) -> None:
    self.lost_ms = 0
    self.timers_ms = {True: model.reconfigure_ms}  # There is only one kind.
    self._model = model

  def step_ms(self, num_pipelines: int, num_ready: int) -> int:
    del num_pipelines  # Their sizes differ.
    return self._model.step_ms("oobleck", num_ready)

  def assign(self, nodes: Sequence[artifact_loop.Node]) -> None:
    """Does nothing: the assignment of nodes does not matter."""

  def lose(self, loop: artifact_loop.Loop, node: artifact_loop.Node) -> None:
    del node
    self.lost_ms += loop.step_ms
    loop.gather(is_global=True)

  def end_step(self, loop: artifact_loop.Loop) -> bool:
    loop.complete_step()
    loop.start_step(loop.now_ms)
    return True


class VarunaRules:
  """Varuna: restarts from the last checkpoint, one every 10 steps.

  Each step is worth its rate times its interval; a lost step's rate becomes 0.

  A checkpoint that is unfinished when a node is removed fails. Without
  `has_rollback` none fails, and no step is lost.

  Attributes:
    lost_ms: The lost time by the artifact's account.
    idle_ms: Time of idle GPUs, as a fraction of all of them.
  """

  num_stages = NUM_STAGES

  def __init__(self, model: Model, removals_ms: Sequence[int], *, has_rollback: bool) -> None:
    self.lost_ms = self.checkpoint_sum_ms = 0
    self.idle_ms = 0.0
    self._model = model
    self._removals_ms = removals_ms
    self._has_rollback = has_rollback
    self._restart_ms = model.restart_ms
    self._idle_gpus = 0
    self._starts_ms: list[int] = []
    self._intervals_ms: list[int] = []
    self._rates: list[float] = []  # Samples per ms.
    self._checkpoint_ms: int | None = None  # Start of the first step after it.
    self._checkpoint_ends_ms: list[int] = []
    self._is_after_loss = False

  def kept_samples(self) -> float:
    steps = zip(self._rates, self._intervals_ms, strict=False)
    return sum(rate * interval_ms for rate, interval_ms in steps)

  @property
  def timers_ms(self) -> Mapping[bool, int]:
    """How long nodes gather; the checkpoint is paid afterwards."""
    return {True: self._restart_ms - self._model.checkpoint_ms}

  def step_ms(self, num_pipelines: int, num_ready: int) -> int:
    del num_pipelines  # Their sizes differ.
    if self._model.restart_ms_by_nodes:
      num_nodes = _clip(num_ready)
      self._restart_ms = self._model.restart_ms_by_nodes[num_nodes]
    self._idle_gpus = self._model.idle_gpus.get(num_ready, 0)
    return self._model.step_ms("varuna", num_ready)

  def assign(self, nodes: Sequence[artifact_loop.Node]) -> None:
    """Does nothing: the assignment of nodes does not matter."""

  def lose(self, loop: artifact_loop.Loop, node: artifact_loop.Node) -> None:
    """Loses the steps after the last checkpoint, and makes all nodes gather."""
    del node
    self._is_after_loss = True
    if self._has_rollback and self._checkpoint_ms is None:
      self._rates = [0.0] * len(self._rates)
      self.lost_ms += loop.now_ms
    elif self._has_rollback:
      kept = bisect.bisect_left(self._starts_ms, self._checkpoint_ms)
      if kept < len(self._starts_ms):
        num_lost = len(self._rates) - kept
        self._rates[kept:] = [0.0] * num_lost
        self.lost_ms += loop.step_ms * (2 * num_lost - 1)
    loop.gather(is_global=True)

  def end_step(self, loop: artifact_loop.Loop) -> bool:
    """Counts the step, makes a checkpoint if due, and starts the next one."""
    interval_ms = loop.now_ms - loop.interval_start_ms
    self._starts_ms.append(loop.interval_start_ms)
    self._intervals_ms.append(interval_ms)
    self._rates.append(self._model.samples_per_step / interval_ms)
    self.idle_ms += interval_ms * self._idle_gpus / max(1, loop.num_ready)
    loop.complete_step()
    if loop.num_steps % _CHECKPOINT_EVERY == 0 or self._is_after_loss:
      self._save(loop)
    loop.start_step(loop.interval_start_ms)
    return False

  def _save(self, loop: artifact_loop.Loop) -> None:
    """Makes a checkpoint, which pauses training, or loses the last 10 steps."""
    self._is_after_loss = False
    self.checkpoint_sum_ms += self._model.checkpoint_ms
    loop.interval_start_ms += self._model.checkpoint_ms
    if self._has_rollback and self._will_fail(loop):
      loop.num_steps = max(0, loop.num_steps - _CHECKPOINT_EVERY)
      # With fewer steps on record there are more rates than intervals from now
      # on, so that each later rate is paired with a later interval.
      self._rates[-_CHECKPOINT_EVERY:] = [0.0] * _CHECKPOINT_EVERY
      self.lost_ms += _CHECKPOINT_EVERY * loop.step_ms
    else:
      self._checkpoint_ms = loop.interval_start_ms

  def _will_fail(self, loop: artifact_loop.Loop) -> bool:
    """Returns whether a loss precedes the end of an open checkpoint.

    The end is late by the time of a checkpoint, as in the artifact.
    """
    end_ms = loop.interval_start_ms + self._model.checkpoint_ms
    if loop.queues_steps:
      return loop.scan(end_ms)
    open_ms = [t for t in self._checkpoint_ends_ms if t >= loop.now_ms]
    self._checkpoint_ends_ms = [*open_ms, end_ms]
    following = bisect.bisect_right(self._removals_ms, loop.now_ms)
    if following == len(self._removals_ms):
      return False
    return self._removals_ms[following] <= self._checkpoint_ends_ms[0]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The results of a run.

  Attributes:
    throughput: Samples per second from the first step's start to the end of the
      last step.
    average_nodes: Mean number of live nodes until the last step's end.
    shares: The artifact's account of time, by name. Each is accumulated by its
      own rule, so their sum is not the time.
  """

  throughput: float
  num_steps: int
  preemptions: int
  average_nodes: float
  shares: Mapping[str, float]


def simulate(
    model: Model,
    system: str,
    trace: trace_lib.Trace,
    *,
    has_rollback: bool = True,
    scans_heap: bool = True,
) -> Outcome | None:
  """Returns the outcome on a trace; None if the model cannot be run.

  The run ends with the last event of the trace, and notices are ignored. With
  `has_rollback`, Varuna loses the steps since its last checkpoint. Whether a loss precedes the end
  of a checkpoint is decided by the order of a heap's array, as in the artifact, or without
  `scans_heap` by the times of events. Raises `ValueError` if the trace is too short or too small
  for any training.
  """
  if system not in SYSTEMS:
    raise ValueError(base.suggest(system, SYSTEMS, what="system"))
  if system not in model.throughput:
    return None
  if trace.num_nodes < NUM_STAGES:
    raise ValueError(
        f"A pipeline takes {NUM_STAGES} nodes, but {trace.name} "
        f"has at most {trace.num_nodes} at once."
    )
  rows = [
      (event.time_ms, event.kind == "add", event.node)
      for event in trace.events
      if event.kind != "notice"
  ]
  if rows[-1][0] <= artifact_loop.CREATION_MS:
    raise ValueError(
        f"A node takes {artifact_loop.CREATION_MS} ms until it is ready, but "
        f"nothing happens from the last event of {trace.name} on, at "
        f"{rows[-1][0]} ms."
    )
  rules = _make_rules(model, system, rows, has_rollback)
  loop = artifact_loop.Loop(rules, queues_steps=scans_heap and system == "varuna")
  loop.run(rows, end_ms=rows[-1][0])
  samples = model.samples_per_step * loop.num_steps
  if isinstance(rules, VarunaRules):
    samples = rules.kept_samples()
  train_ms = loop.last_ms - (loop.first_ms or 0)
  return Outcome(
      throughput=1000 * samples / train_ms if loop.last_ms else 0.0,
      num_steps=loop.num_steps,
      preemptions=loop.num_removals,
      average_nodes=loop.average_nodes(),
      shares=_shares(rules, loop),
  )


def _make_rules(
    model: Model, system: str, rows: Sequence[artifact_loop.Row], has_rollback: bool
) -> artifact_loop.Rules:
  if system == "oobleck":
    return OobleckRules(model)
  if system == "varuna":
    removals_ms = [time_ms for time_ms, is_added, _ in rows if not is_added]
    return VarunaRules(model, removals_ms, has_rollback=has_rollback)
  return artifact_loop.BambooRules(
      num_stages=NUM_STAGES,
      step_ms=lambda _, num_ready: model.step_ms("bamboo", num_ready),
      local_ms=model.local_ms,
  )


def _shares(rules: artifact_loop.Rules, loop: artifact_loop.Loop) -> Mapping[str, float]:
  sums = {"effective": loop.queued_ms, "fallback": rules.lost_ms}
  global_ms, local_ms = loop.timer_sum_ms[True], loop.timer_sum_ms[False]
  if isinstance(rules, OobleckRules):
    sums["rebalance"] = global_ms
  elif isinstance(rules, VarunaRules):
    sums["restart"] = global_ms
    sums["checkpoint"] = rules.checkpoint_sum_ms
    sums["idle_gpu"] = rules.idle_ms
  else:
    sums["effective"] = _USEFUL * loop.queued_ms
    sums["redundant"] = (1 - _USEFUL) * loop.queued_ms
    sums["restart"], sums["rebalance"] = global_ms, local_ms
  total = sum(sums.values())
  return {name: value / total for name, value in sums.items()}
