"""A run of a cluster on this machine: nodes, faults, trace and progress."""

import collections
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import functools
import importlib
import json
import math
import pathlib
import shlex
import statistics
import time
from typing import NamedTuple

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import logs
from bamboo_jax.cluster import mirror
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.local_cluster import machine, narrator, strikes as strikes_lib
from bamboo_jax.metrics import jsonl, progress as progress_lib
from bamboo_jax.net import addresses
from bamboo_jax.recovery import durations, placement
from bamboo_jax.report import events
from bamboo_jax.report.live import feed as feed_lib, server
from bamboo_jax.traces import scale, trace as trace_lib
from bamboo_jax.training.setup import sizes

_HOST = "127.0.0.1"  # All processes are on this machine.
_POLL_SECS = 0.05
_MAX_PAUSE_SECS = 60.0  # Between attempts to start a node for a join.
_ASK_SECS = 1.0  # Between two requests to save and end.
_SAVE_SECS = 60.0  # Time limit, plus ten steps, to finish a step and save.
_LEAVE_SECS = 5.0  # Time for agents to end once the summary is written.
_SLOW = 4.0  # A step is reported if it lasts this multiple of the usual time.
_LEAST_SLOW_SECS = 1.0


def find_first_zones(
    config: config_lib.Config,
    num_nodes: int | None,
    zones: Sequence[str],
    replay: scale.Replay | None,
) -> list[str]:
  """Returns the zone of each initial node; `ValueError` if config or zones do not fit a cluster."""
  from bamboo_jax.training.setup import build  # Takes a second: JAX.

  build.check_environment()
  if not all(zones) or not zones:
    raise ValueError(f"--zones must be names such as a,b,c, got {','.join(zones)!r}.")
  pipeline = config.pipeline
  needed = pipeline.num_pipelines * pipeline.num_stages
  if replay is None:
    named = [""] * (num_nodes or sizes.num_nodes(config))
    given = f"--nodes={len(named)}"
  else:
    named = list(map(trace_lib.zone_of, replay.first))
    given = f"a trace that starts with {len(named)}"
  if len(named) < needed:
    raise ValueError(
        f"{pipeline.num_pipelines} pipelines of {pipeline.num_stages} stages "
        f"need at least {needed} nodes, got {given}."
    )
  found = [zone or zones[i % len(zones)] for i, zone in enumerate(named)]
  for zone in (*zones, *found):
    placement.check_zone(zone)
  return found


class _Join(NamedTuple):
  """A node that shall join; `zone` and `node` are those in a trace, or ""."""

  zone: str = ""
  node: str = ""
  tries: int = 0  # That have failed.
  due_secs: float = 0.0  # When the next one is due, on `time.monotonic`.


@dataclasses.dataclass(kw_only=True)
class ClusterRun:
  """A run on this machine: starts its nodes, and ends them all afterwards.

  Create it with the folder locked.

  Attributes:
    workdir: Folder of the run on this machine.
    place: The folder or URL that the user has named.
    arguments: Command-line arguments of every agent.
    first_zones: Zone of each initial node.
    zones: Assigned in turn to nodes that join without one.
    faults_file: Written with `faults`, for the workers; None: they have one.
    replay: Trace to replay from the first step on, if any.
    gpus: GPUs of this machine; nodes share them if they are more.
    page_port: Port of a page on the run, 0 for a free one; None: no page.
    metrics_port: Port at which the first node serves metrics for Prometheus;
      each later one has the next port. None: no metrics.
  """

  config: config_lib.Config
  workdir: pathlib.Path
  place: str
  arguments: Sequence[str]
  first_zones: Sequence[str]
  zones: Sequence[str]
  faults: Sequence[faults_lib.Fault] = ()
  faults_file: pathlib.Path | None = None
  replay: scale.Replay | None = None
  gpus: Sequence[str] = ()
  page_port: int | None = None
  metrics_port: int | None = None

  def __post_init__(self) -> None:
    faults_lib.check_nodes(
        self.faults, num_nodes=len(self.first_zones), zones=self.zones, source="--faults"
    )
    self._progress = progress_lib.ProgressLine(num_steps=self.config.num_steps)
    self._cluster = machine.LocalCluster(self.workdir, self.place, self.gpus)
    self._strikes = strikes_lib.Strikes(self.faults, self._cluster)
    self._summary, self._logs = self.workdir / "summary.json", self.workdir / "logs"
    self._former_summary = self._read_summary()
    self._num_started = 0
    self._joins: list[_Join] = []  # Not started, or to be tried again.
    self._joining: dict[str, _Join] = {}  # Started, and not heard yet.
    self._reader = jsonl.MetricsReader(self.workdir / "metrics.jsonl")
    self._reader.read()  # Of earlier runs: not shown.
    self._last_step = 0  # Of this run, which may begin before the last one of an earlier run.
    self._starts: list[int] = []  # Steps at which this run has started.
    self._has_stepped = self._is_asked_to_stop = False
    self._told_secs = math.inf  # When the last step ended.
    self._step_secs = collections.deque([1.0], maxlen=9)
    self._over_secs = math.inf  # When the summary was seen.
    self._stop_secs = math.inf  # When the workers were first asked to stop.
    self._ask_secs = 0.0  # When they are asked next.
    self._events = collections.deque(self.replay.events if self.replay else ())  # To come.
    self._replayed: dict[str, str] = {}  # Names of nodes, by those in the trace.
    self._trace_secs = math.inf  # When the time of the trace began.

  def run(self, hearing: Callable[..., contextlib.AbstractContextManager[None]]) -> None:
    """Runs until all agents have ended, or there is a summary; shows progress, and reports.

    `hearing` is that of `launch/cli.py`. Raises `base.EndedError` without a first step or a
    summary.
    """
    for name, first, count in (
        ("--page_port", self.page_port, 1),
        ("--metrics_port", self.metrics_port, len(self.first_zones)),
    ):
      for port in () if first is None else range(first, first + count):
        addresses.check_free(name, _HOST, port)
    with self._progress:
      with hearing(self.ask_to_stop, tidies=True):
        self._train()
      for line in self.find_missed():
        self._progress.show_text(line)
    self.report()

  def _train(self) -> None:
    config, show = self.config, self._progress.show_text
    nodes = self.replay.first if self.replay else [""] * len(self.first_zones)
    show(sizes.describe_batch(config))
    # Not with GPUs, as each process then has an environment of its own. Nodes
    # that join later are not forked either: by then this process has threads, as it has
    # once it has used a bucket.
    if are_copies := not self.gpus and not base.is_bucket(self.place):
      show("reading the data, tracing the programs")
      are_copies = _prepare(config, self.place)
    _, survival = machine.place_nodes(config, dict(base.by_node(self.first_zones)))
    show(survival.render())
    self._cluster.take_folder(config.cluster.most_silence_secs)  # Nothing is written before it.
    if self.faults_file is not None:
      base.write_atomically(self.faults_file, faults_lib.render(self.faults))
    try:
      start = functools.partial(self.start_node, is_copy=are_copies)
      num_nodes = len([*map(start, self.first_zones, nodes)])
      show(f"status: bamboo status --workdir={shlex.quote(self.place)}")
      self._progress.explain(f"{num_nodes} nodes start, compile and meet; logs: {self._logs}")
      if self.page_port is not None:
        self._serve_page(self.page_port)
      while self.tend(time.monotonic()):
        time.sleep(_POLL_SECS)
    finally:
      self._cluster.close()
    if not self._is_over and (self._cluster.num_failed or self._former_summary is None):
      raise base.EndedError(self._cluster.mistake or f"The run has ended early; see {self._logs}.")

  def _serve_page(self, port: int) -> None:
    """Serves a page on the run, with buttons that cause faults, and shows its address."""
    feed = feed_lib.Feed(
        self.workdir,
        self._cluster.records,
        name=self.place if base.is_bucket(self.place) else self.workdir.absolute().name,
        actions=strikes_lib.ACTIONS,
        kills=self._strikes.kills,
    )
    token = server.make_token((self.workdir / "secret").read_text())
    try:
      address = server.start(feed.read, token=token, port=port, act=self._strikes.cause)
      self._progress.show_text(f"page: {address}")
    except (OSError, base.MissingExtraError) as error:
      self._progress.show_text(f"warning: No page: {error} Training continues.")

  def ask_to_stop(self) -> bool:
    """Asks the run to save and end; returns whether it has state to save.

    Safe in a signal handler.
    """
    self._is_asked_to_stop = self._has_stepped and not self._is_over
    return self._is_asked_to_stop

  def report(self) -> None:
    """Adds the times of deaths to the summary, and shows it."""
    content = json.loads(self._summary.read_text())
    if not self._is_over:
      self._progress.show_text(f"nothing to do: {content['steps']} steps are done")
      return
    content["recoveries"] = durations.report(content["recoveries"], self._strikes.kills)
    base.write_atomically(self._summary, json.dumps(content, indent=2) + "\n")
    for line in narrator.render_end(self._summary):
      self._progress.show_text(line)
    if base.is_bucket(self.place):
      try:
        mirror.Mirror(self.place, self.workdir).push()
      except OSError as error:
        raise base.NodeFailedError(mirror.explain_left(self.workdir, error)) from error

  def find_missed(self) -> list[str]:
    """Returns a message for each fault that never happened."""
    return faults_lib.find_missed(
        self.faults,
        self._strikes.happened,
        first=min(self._starts, default=0),
        end=self._last_step,
        source="--faults",
    )

  @property
  def _is_over(self) -> bool:
    return self._read_summary() != self._former_summary

  def _read_summary(self) -> bytes | None:
    return self._summary.read_bytes() if self._summary.exists() else None

  def start_node(self, zone: str = "", node: str = "", *, is_copy: bool = False) -> str:
    name, zones = f"n{self._num_started}", self.zones
    zone = zone or zones[self._num_started % len(zones)]
    arguments = [*self.arguments, f"--nodes={len(self.first_zones)}", "--noprogress"]
    if self.faults:  # They happen once, though new nodes may begin another run.
      arguments.append(f"--faults_run={self._cluster.run}")
    if (port := self.metrics_port) is not None:
      port += self._num_started
      try:
        addresses.check_free("--metrics_port", _HOST, port)
        arguments.append(f"--metrics_port={port}")
      except ValueError as error:  # Only the agent's log would say so.
        self._progress.show_text(f"warning: No metrics of {name}: {error} Training continues.")
    self._num_started += 1
    self._cluster.start_agent(name, zone, arguments=arguments, is_copy=is_copy)
    self._note("start", name, node)
    if node:
      self._replayed[node] = name
    return name

  def _note(self, event: str, name: str, node: str) -> None:
    """Adds a line to `nodes.jsonl`; `node` is the name in a trace."""
    try:
      jsonl.note_node(self.workdir, event, name, node=node)
    except OSError as error:  # It must not end a run that trains.
      self._progress.show_text(f"warning: {error}")

  def tend(self, now_secs: float) -> bool:
    """Shows progress and does what is due; returns whether the run goes on."""
    if self._is_asked_to_stop and now_secs >= self._ask_secs:
      self._cluster.stop()  # Also those that have begun again since.
      self._ask_secs = now_secs + _ASK_SECS
      self._stop_secs = min(self._stop_secs, now_secs)
    for name, text in self._cluster.tend().items():
      if not self._cluster.mistake:  # Others end with it, too.
        self._progress.show_text(f"{text}; worker: log {self._logs / name}.log")
      if fault := self._find_fault():
        self._progress.show_text(f"warning: {fault}")
    self._strikes.read()  # After agents were polled: a victim tells before it dies.
    is_over, is_stopping = self._is_over, self._is_asked_to_stop
    goes_on = bool(self._cluster.num_running) or not is_stopping and self._expects_joins()
    self._show_progress(now_secs)
    if not goes_on:
      return False
    patience_secs = _SAVE_SECS + 10 * max(self._step_secs)
    if now_secs > self._stop_secs + patience_secs:
      raise ValueError("No step ended in time to be saved.")
    usual_secs, secs = statistics.median(self._step_secs), now_secs - self._told_secs
    if not is_over and secs > max(_LEAST_SLOW_SECS, _SLOW * usual_secs):
      self._told_secs = math.inf  # Once, unless the log has given a reason.
      why = self._find_fault() or "no reason is known yet"
      self._progress.show_text(
          f"pause: no step for {secs:.1f} s (median {usual_secs:.1f} s); {why}"
      )
    num_own = self._cluster.num_failed - len(self._strikes.dead)
    if not self._has_stepped and num_own > 0:
      raise base.EndedError(self._cluster.mistake or "A node has failed before the first step.")
    if is_over:  # The nodes that remain after a while joined after the end of the run.
      self._over_secs = min(self._over_secs, now_secs)
      return now_secs <= self._over_secs + _LEAVE_SECS
    if self._cluster.mistake and not self._cluster.has_live_members():
      return False  # The remaining nodes would wait for others for ever.
    if not is_stopping:
      self._start_due(now_secs)
    return True

  def _find_fault(self) -> str:
    """Returns why nothing can be written to the workdir, "" if it can."""
    # Agents may have made the folder again, for what they say of themselves.
    if self._has_stepped and not (self.workdir / "metrics.jsonl").exists():
      return (
          f"the files of the run in {self.workdir} are gone: mount the folder again, or if it was "
          "removed, end the run"
      )
    return base.find_full(self.workdir)

  def _expects_joins(self) -> bool:
    """Returns whether nodes will still join, after all others were killed."""
    if self.replay is not None:
      return any(event.kind == "add" for event in self._events)
    are_struck = self._cluster.num_failed <= len(self._strikes.dead)
    return are_struck and not self._is_over and self._strikes.call_next()

  def _start_due(self, now_secs: float) -> None:
    self._joins += [_Join()] * self._strikes.take_joins()
    for name, join in [*self._joining.items()]:
      if self._cluster.has_failed(name):  # Before it has joined; training may wait.
        del self._joining[name]
        if self._cluster.find_number(name) is None:
          self._try_again(join, f"{name} could not join", now_secs)
    for join in [j for j in self._joins if j.due_secs <= now_secs]:
      self._joins.remove(join)
      self._start_join(join, now_secs)
    if self._events and self._has_stepped:
      self._trace_secs = min(self._trace_secs, now_secs)
      while self._events and self._events[0].time_ms <= 1e3 * (now_secs - self._trace_secs):
        self._play(self._events.popleft(), now_secs)

  def _start_join(self, join: _Join, now_secs: float) -> None:
    try:
      name = self.start_node(join.zone, join.node)
    except OSError as error:
      return self._try_again(join, f"no node can start: {error}", now_secs)
    if not join.node:
      self._joining[name] = join
      self._progress.show_text(f"{name} starts, to join")

  def _try_again(self, join: _Join, why: str, now_secs: float) -> None:
    secs = min(2.0**join.tries, _MAX_PAUSE_SECS)
    self._progress.show_text(f"{why}; another one starts in {secs:.0f} s")
    join = join._replace(tries=join.tries + 1, due_secs=now_secs + secs)
    self._joins.append(join)

  def _play(self, event: trace_lib.Event, now_secs: float) -> None:
    if event.kind == "add":
      self._replayed.pop(event.node, None)  # Of its former life.
      self._start_join(_Join(event.zone, event.node), now_secs)
    elif event.kind == "remove":
      self._joins = [j for j in self._joins if j.node != event.node]
    if (name := self._replayed.get(event.node)) is None:
      return  # It has not been started.
    self._progress.show_text(
        f"trace at_secs={event.time_ms / 1e3:.1f} {event.kind}={name} " f"node={event.node}"
    )
    if event.kind != "add":
      self._note(event.kind, name, event.node)
    if event.kind == "remove":
      self._strikes.kill_node(name)
    elif event.kind == "notice":
      self._cluster.give_notice(name)

  def _show_progress(self, now_secs: float) -> None:
    """Shows the lines of the log since the last call."""
    for line in self._reader.read():
      self._last_step = max(self._last_step, line["step"])
      if line.get("event") == jsonl.START:
        if self._starts:  # Nobody was left who could write it.
          self._progress.show_text(f"all nodes died; step {line['step'] + 1} is next")
        self._starts.append(line["step"])
      if line.get("event") == "pause":
        self._told_secs = math.inf  # The log gives a reason.
      elif "event" not in line:
        self._told_secs = now_secs
      events.show(self._progress, line)
      if "event" not in line:
        self._has_stepped = True
        logs.note_step(line["step"])
        self._step_secs.append(line.get("step_ms", 1e3) / 1e3)


def _prepare(config: config_lib.Config, place: str) -> bool:
  """Prepares the job of all nodes; returns whether they can be forked.

  Raises `base.CheckpointError` if `place` is of another run.
  """
  for name in ("bamboo_jax.local_cluster.node", "bamboo_jax.training.run"):
    importlib.import_module(name)  # Takes a second: JAX.
  from bamboo_jax.training.record import workdir as workdir_lib
  from bamboo_jax.training.setup import job as job_lib

  can_fork = job_lib.prepare(config)
  job_lib.check_same(config, job_lib.peek(), workdir_lib.Workdir.at(place))
  return can_fork
