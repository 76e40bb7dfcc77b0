"""Layouts times kinds of faults: jobs of a sweep, and a row for each.

A row counts the cases of a kind in a layout that ended in the state of the undisturbed run, and
names those that did not, with the command that repeats one.
"""

import collections
from collections.abc import Sequence
import dataclasses
import functools
import gc
import multiprocessing
import pathlib
import random
import shlex
import sys
import tempfile
import time
from typing import Any, NamedTuple

import jax
import tqdm

from bamboo_jax import config as config_lib
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.models import units
from bamboo_jax.plan import cost_model
from bamboo_jax.runtime import devices as devices_lib, program_store
from bamboo_jax.training.setup import accept, build, sizes
from bamboo_jax.verify import cases as cases_lib, layouts as layouts_lib, trials as trials_lib

KINDS = ("single", *cases_lib.KINDS, "storm", "mixed")
_GIVEN, _PROCESSES = "given", "processes"
_MIXED = ("kill", "kill", "kill", "node", "notice")
_MANY_MAPPINGS = 20_000


@dataclasses.dataclass(frozen=True)
class Options:
  """What dies in each layout.

  Attributes:
    kinds: Some of `KINDS`.
    every: Of single deaths, one of so many.
    num_cases: Random cases of each other kind.
    num_events: Faults of a case of the kinds "storm" and "mixed".
    seed: Of random cases in layouts that were given.
    faults: The only case; None: those of `kinds`.
  """

  kinds: tuple[str, ...]
  every: int = 1
  num_cases: int = 1
  num_events: int = 4
  seed: int = 0
  faults: tuple[faults_lib.Fault, ...] | None = None


class VerifyJob(NamedTuple):
  """A layout to run: in this process, or with `arguments` in a cluster of processes."""

  layout: layouts_lib.SweepLayout
  config: config_lib.Config
  options: Options
  arguments: tuple[str, ...] | None
  program_cache: str  # Folder; empty: none.
  num_devices: int


class FailedCase(NamedTuple):
  """A case that did not end as it must; `faults` are those that repeat it."""

  faults: tuple[faults_lib.Fault, ...] | None
  message: str


@dataclasses.dataclass
class VerifyRow:
  """How the cases of a kind ended in a layout; `states` are hashes by number of cases."""

  layout: layouts_lib.SweepLayout
  kind: str
  states: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  failures: list[FailedCase] = dataclasses.field(default_factory=list)
  counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  secs: float = 0.0


class Layouts:
  """Makes the trials of a config's layouts, which share programs and undisturbed runs."""

  def __init__(self, config: Any) -> None:
    self.config = accept.accept(config)
    self.task = build.make_task(self.config)
    self._profile = build.make_profile(self.config, self.task)
    self._wanted: dict[str, trials_lib.TrialOutcome] = {}

  def make_trials(
      self, layout: layouts_lib.SweepLayout, *, num_events: int = 0
  ) -> trials_lib.Trials:
    """Returns the trials of a layout, in which that many events happen."""
    if program_store.count_mappings() > _MANY_MAPPINGS:  # Too many end the process.
      self.task.programs.clear()
      jax.clear_caches()
      gc.collect()
    config = self.config.changed(dict(layout.settings))
    with tempfile.TemporaryDirectory() as folder:
      if layout.costs_seed is not None:
        path = pathlib.Path(folder, "profile.json")
        path.write_text(cost_model.to_json(_redraw(self._profile, layout.costs_seed)))
        config = config.changed({"plan.profile": str(path)})
      return trials_lib.Trials(
          config,
          like=self.task,
          num_events=num_events,
          num_devices=layout.num_devices,
          plain=layouts_lib.without_deaths(self.config, layout),
          wanted=self._wanted,
      )


def plan(
    config: config_lib.Config,
    options: Options,
    *,
    sweeps: Sequence[Sequence[tuple[str, Any]]] = ((),),
    count: int | None = None,
    arguments: Sequence[str] | None = None,
    program_cache: str = "",
) -> list[VerifyJob]:
  """Returns the jobs: layouts of settings, or `count` random ones, in turn.

  With `arguments`, those of the config, layouts are clusters of processes.
  """
  if count is None:
    for settings in sweeps:
      config.changed(dict(settings))  # Raises `ValueError` for one that is not allowed.
    layouts = [layouts_lib.SweepLayout(tuple(settings)) for settings in sweeps]
  elif config.pipeline.executor == "spmd":
    raise ValueError("Random layouts need config.pipeline.executor='rows', got 'spmd'.")
  else:
    most = layouts_lib.CLUSTER_SIZE
    if arguments is None:
      most = dict(max_stages=1 + len(units.find_cuts(build.make_task(config).whole.names)))
    layouts = [*layouts_lib.draw_layouts(config, count, seed=options.seed, **most)]
  num_devices = layouts_lib.MAX_DEVICES
  for layout in layouts:
    changed = config.changed(dict(layout.settings))
    if changed.pipeline.executor == "spmd":  # Nodes that share a device run no program.
      num_late = options.num_events * ("storm" in options.kinds)
      num_devices = max(num_devices, sizes.num_nodes(changed) + num_late)
  given = tuple(arguments) if arguments is not None else None
  return [
      VerifyJob(layout, config, options, given, program_cache, num_devices) for layout in layouts
  ]


def run(job: VerifyJob) -> list[VerifyRow]:
  """Returns a row for each kind; the other cases are run whatever one does.

  Raises `ValueError` if the layout was given and cannot be planned.
  """
  if job.arguments is not None:
    return [_run_kind(job, _PROCESSES)]
  kinds = job.options.kinds if job.options.faults is None else (_GIVEN,)
  return [_run_kind(job, kind) for kind in kinds]


def find_command(
    row: VerifyRow, failure: FailedCase, arguments: Sequence[str], options: Options
) -> str:
  """Returns the command that repeats a failed case; `arguments` are those of the config."""
  layout = row.layout
  if layout.number is None:
    more = [f"--sweep={name}={value}" for name, value in layout.settings]
  else:
    more = ["--layouts=1", f"--seed={layout.number}"]
  if row.kind == _PROCESSES:
    more.append("--processes")
  elif failure.faults is not None:
    more.append(f"--faults={';'.join(map(str, failure.faults))}")
  elif row.kind != _GIVEN:
    more.append(f"--kinds={row.kind}")
  return shlex.join(["bamboo", "verify", *arguments, *more, f"--num_events={options.num_events}"])


def render(row: VerifyRow) -> str:
  num_same, num_failed = sum(row.states.values()), len(row.failures)
  none = "FAILED" if row.failures else "none"  # Too small a layout has no pairs, for example.
  states = ",".join(state[:12] for state in row.states) or none
  words = [states, f"kind={row.kind}", f"cases={num_same + num_failed}", f"same={num_same}"]
  words += [f"{name}={count}" for name, count in row.counts.items()]
  return " ".join([*words, f"secs={row.secs:.1f}", str(row.layout)]).rstrip()


def _run_kind(job: VerifyJob, kind: str) -> VerifyRow:
  row, start, counts = VerifyRow(job.layout, kind), time.perf_counter(), collections.Counter[str]()
  config = job.config.changed(dict(job.layout.settings))
  cases: Sequence[cases_lib.Case | cases_lib.Storm] = ()
  try:
    if kind == _PROCESSES:
      cases, run_case = [cases_lib.Case(())], functools.partial(_run_cluster, job)
    else:
      events = max(job.options.num_events, len(job.options.faults or ()))
      trials = _find_layouts(job).make_trials(job.layout, num_events=events)
      cases, run_case = _list_cases(job, trials, kind), trials.run
  except Exception as error:
    if job.layout.number is None:
      raise
    row.failures.append(FailedCase(None, f"{type(error).__name__}: {error}"))
  is_quiet = not sys.stderr.isatty() or multiprocessing.parent_process() is not None
  for case in tqdm.tqdm(cases, desc=f"{kind} {job.layout}", unit="case", disable=is_quiet):
    try:
      outcome = run_case(case)
      if isinstance(case, cases_lib.Storm) and kind == "storm":
        counts.update(events=len(case.faults), compiled=case.num_compiled)
        if config.pipeline.executor == "rows" and case.num_compiled:
          raise trials_lib.TroubleError(f"{case.num_compiled} programs were compiled meanwhile")
    except Exception as error:
      failed = FailedCase(tuple(case.faults), f"{type(error).__name__}: {error}")
      row.failures.append(failed)
      continue
    row.states[outcome.state] += 1
    row.counts.update(outcome.rungs)
  row.counts.update(counts)
  row.secs = time.perf_counter() - start
  return row


def _list_cases(
    job: VerifyJob, trials: trials_lib.Trials, kind: str
) -> Sequence[cases_lib.Case | cases_lib.Storm]:
  options, config = job.options, trials.config
  if kind == _GIVEN:
    assert options.faults is not None
    return [cases_lib.Case(options.faults, options.num_events + 1)]
  if kind == "single":
    return cases_lib.single_deaths(trials.steps, every=options.every)
  first = options.seed if job.layout.number is None else job.layout.number
  if kind in cases_lib.KINDS:
    return cases_lib.draw_deaths(kind, trials.steps, num_cases=options.num_cases, seed=first)
  goes_back = kind == "mixed" and config.recovery.checkpoint
  return [
      cases_lib.Storm(
          num_events=options.num_events,
          at_once=2 if kind == "mixed" else max(1, config.recovery.num_failures),
          seed=seed,
          kinds=(*_MIXED, *["all"] * goes_back) if kind == "mixed" else ("kill",),
          goes_back=goes_back,
      )
      for seed in range(first, first + options.num_cases)
  ]


_made: dict[str, Layouts] = {}  # Of this process, by their config; they keep programs.


def _find_layouts(job: VerifyJob) -> Layouts:
  key = str(job.config)
  if key not in _made:
    program_store.use(job.program_cache)
    devices_lib.use_virtual_devices(job.num_devices, distinct=True)
    _made[key] = Layouts(job.config)
  return _made[key]


def _run_cluster(job: VerifyJob, case: cases_lib.Case) -> trials_lib.TrialOutcome:
  """Runs a layout as a cluster; raises `RuntimeError` unless it ends as one process does."""
  num_events, arguments = job.options.num_events, job.arguments or ()
  key = f"{job.config} {num_events}"
  if key not in _alone:
    _alone[key] = layouts_lib.run_cluster(None, job.config, arguments, num_events=num_events)
  state = layouts_lib.run_cluster(job.layout, job.config, arguments, num_events=num_events)
  if state != _alone[key]:
    raise RuntimeError(f"{state[:12]} is not {_alone[key][:12]}, the state of one process")
  return trials_lib.TrialOutcome((), (), (), (), state)


_alone: dict[str, str] = {}  # States of undisturbed runs of one process.


def _redraw(profile: cost_model.Profile, seed: int) -> cost_model.Profile:
  rng = random.Random(f"costs {seed}")
  layers = [
      dataclasses.replace(layer, forward_ms=rng.uniform(1, 9), backward_ms=rng.uniform(1, 9))
      for layer in profile.layers
  ]
  return dataclasses.replace(profile, layers=tuple(layers))
