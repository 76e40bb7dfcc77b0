"""Layouts times kinds of faults: jobs of a sweep, and a row for each.

A row counts the cases of a kind in a layout that ended in the state of the undisturbed run, and
names those that did not, with the command that repeats one.
"""

import collections
from collections.abc import Callable, Sequence
import dataclasses
import functools
import gc
import json
import multiprocessing
import pathlib
import random
import shlex
import shutil
import sys
import tempfile
import time
from typing import Any

import jax
import tqdm

from bamboo_jax import config as config_lib
from bamboo_jax.benchmarks import interleave
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.models import units
from bamboo_jax.plan import cost_model
from bamboo_jax.runtime import devices as devices_lib, program_store
from bamboo_jax.training.setup import build, sizes
from bamboo_jax.verify import cases as cases_lib, layouts as layouts_lib, trials as trials_lib

KINDS = ("single", *cases_lib.KINDS, "storm", "mixed")
GIVEN, PROCESSES = "given", "processes"  # The only kind of a job, if it is.
_MIXED = ("kill", "kill", "kill", "node", "notice")
_MANY_MAPPINGS = 20_000
# Of clusters of processes.
_STEPS_PER_EVENT = 20
_LIMIT_SECS = 600.0
_ZONES = ("a", "a,b,c", "a,b,c")
_CLUSTER_KINDS = ("kill", "kill,stop", "kill,node,notice", "kill,node,stop,leader,zone,notice,all")

Cases = Sequence[cases_lib.Case | cases_lib.Storm]
Faults = tuple[faults_lib.Fault, ...]


@dataclasses.dataclass(frozen=True)
class VerifyJob:
  """A layout to run, and what dies in it.

  Attributes:
    kinds: Some of `KINDS`; or `GIVEN`; or `PROCESSES`, as a cluster of processes.
    arguments: `--config` and its overrides.
    every: Of single deaths, one of so many.
    num_cases: Random cases of each other kind.
    num_events: Faults of a case of the kinds "storm" and "mixed", and of a cluster.
    seed: Of random cases, if the layout was given.
    faults: The case of the kind `GIVEN`.
    program_cache: Folder; empty: none.
  """

  layout: layouts_lib.SweepLayout
  config: config_lib.Config
  kinds: tuple[str, ...]
  arguments: tuple[str, ...] = ()
  every: int = 1
  num_cases: int = 1
  num_events: int = 4
  seed: int = 0
  faults: Faults = ()
  program_cache: str = ""
  num_devices: int = layouts_lib.MAX_DEVICES


@dataclasses.dataclass
class VerifyRow:
  """How the cases of a kind ended in a layout.

  Attributes:
    states: Number of cases by the hash of the state.
    failures: Of each case that did not end as it must, the faults that repeat it, and why; None:
      it could not be planned.
  """

  job: VerifyJob
  kind: str
  states: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  failures: list[tuple[Faults | None, str]] = dataclasses.field(default_factory=list)
  counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  secs: float = 0.0


# Model, programs and costs of this process, by their config.
_prepared: dict[str, tuple[build.Task, cost_model.Profile]] = {}


def prepare(config: config_lib.Config) -> tuple[build.Task, cost_model.Profile]:
  """Returns model, programs and costs of a config, which its layouts share."""
  if (key := str(config)) not in _prepared:
    task = build.make_task(config)
    _prepared[key] = task, build.make_profile(config, task)
  return _prepared[key]


def make_trials(
    config: config_lib.Config, layout: layouts_lib.SweepLayout, *, num_events: int = 0
) -> trials_lib.Trials:
  """Returns the trials of a layout, in which that many events happen."""
  task, profile = prepare(config)
  if program_store.count_mappings() > _MANY_MAPPINGS:  # Too many end the process.
    task.programs.clear()
    jax.clear_caches()
    gc.collect()
  changed = config.changed(dict(layout.settings))
  with tempfile.TemporaryDirectory() as folder:
    if layout.costs_seed is not None:
      path = pathlib.Path(folder, "profile.json")
      rng = random.Random(f"costs {layout.costs_seed}")
      layers = [
          dataclasses.replace(layer, forward_ms=rng.uniform(1, 9), backward_ms=rng.uniform(1, 9))
          for layer in profile.layers
      ]
      drawn = dataclasses.replace(profile, layers=tuple(layers))
      path.write_text(cost_model.to_json(drawn))
      changed = changed.changed({"plan.profile": str(path)})
    return trials_lib.Trials(
        changed,
        like=task,
        num_events=num_events,
        num_devices=layout.num_devices,
        plain=layouts_lib.without_deaths(config, layout),
    )


def plan(
    config: config_lib.Config,
    kinds: tuple[str, ...],
    *,
    sweeps: Sequence[Sequence[tuple[str, Any]]] = ((),),
    count: int | None = None,
    **options: Any,
) -> list[VerifyJob]:
  """Returns the jobs: layouts of settings, or `count` random ones, in turn.

  `options` are other fields of `VerifyJob`.
  """
  job = VerifyJob(layouts_lib.SweepLayout(), config, kinds, **options)
  if count is None:
    layouts = [layouts_lib.SweepLayout(tuple(settings)) for settings in sweeps]
  elif config.pipeline.executor == "spmd":
    raise ValueError("Random layouts need config.pipeline.executor='rows', got 'spmd'.")
  else:
    most = layouts_lib.CLUSTER_SIZE
    if kinds != (PROCESSES,):
      most = dict(max_stages=1 + len(units.find_cuts(build.make_task(config).whole.names)))
    layouts = [*layouts_lib.draw_layouts(config, count, seed=job.seed, **most)]
  num_devices = job.num_devices
  for layout in layouts:
    changed = config.changed(dict(layout.settings))  # `ValueError` for one that is not allowed.
    if changed.pipeline.executor == "spmd":  # Nodes that share a device run no program.
      num_late = job.num_events * ("storm" in kinds)
      num_devices = max(num_devices, sizes.num_nodes(changed) + num_late)
  return [dataclasses.replace(job, layout=layout, num_devices=num_devices) for layout in layouts]


def run(job: VerifyJob) -> list[VerifyRow]:
  """Returns a row for each kind; the other cases are run whatever one does.

  Raises `ValueError` if the layout was given and cannot be planned.
  """
  if job.kinds != (PROCESSES,) and str(job.config) not in _prepared:
    program_store.use(job.program_cache)
    devices_lib.use_virtual_devices(job.num_devices, distinct=True)
  return [_run_kind(job, kind) for kind in job.kinds]


def find_command(row: VerifyRow, faults: Faults | None) -> str:
  """Returns the command that repeats a failed case."""
  job, layout = row.job, row.job.layout
  if layout.number is None:
    more = [f"--sweep={name}={value}" for name, value in layout.settings]
  else:
    more = ["--layouts=1", f"--seed={layout.number}"]
  if row.kind == PROCESSES:
    more.append("--processes")
  elif faults is not None:
    more.append(f"--faults={';'.join(map(str, faults))}")
  elif row.kind != GIVEN:
    more.append(f"--kinds={row.kind}")
  return shlex.join(["bamboo", "verify", *job.arguments, *more, f"--num_events={job.num_events}"])


def render(row: VerifyRow) -> str:
  num_same, num_failed = sum(row.states.values()), len(row.failures)
  none = "FAILED" if row.failures else "none"  # Too small a layout has no pairs, for example.
  states = ",".join(state[:12] for state in row.states) or none
  words = [states, f"kind={row.kind}", f"cases={num_same + num_failed}", f"same={num_same}"]
  words += [f"{name}={count}" for name, count in row.counts.items()]
  return " ".join([*words, f"secs={row.secs:.1f}", str(row.job.layout)]).rstrip()


def _run_kind(job: VerifyJob, kind: str) -> VerifyRow:
  row, start = VerifyRow(job, kind), time.perf_counter()
  executor = job.config.changed(dict(job.layout.settings)).pipeline.executor
  try:
    cases, run_case = _list_cases(job, kind)
  except Exception as error:
    if job.layout.number is None:
      raise
    row.failures.append((None, f"{type(error).__name__}: {error}"))
    cases = ()
  is_quiet = not sys.stderr.isatty() or multiprocessing.parent_process() is not None
  for case in tqdm.tqdm(cases, desc=f"{kind} {job.layout}", unit="case", disable=is_quiet):
    try:
      outcome = run_case(case)
      if isinstance(case, cases_lib.Storm) and kind == "storm":
        row.counts["events"] += len(case.faults)
        row.counts["compiled"] += case.num_compiled
        if executor == "rows" and case.num_compiled:
          raise trials_lib.TroubleError(f"{case.num_compiled} programs were compiled meanwhile")
    except Exception as error:
      row.failures.append((tuple(case.faults), f"{type(error).__name__}: {error}"))
      continue
    row.states[outcome.state] += 1
    row.counts.update(outcome.rungs)
  row.secs = time.perf_counter() - start
  return row


def _list_cases(
    job: VerifyJob, kind: str
) -> tuple[Cases, Callable[[Any], trials_lib.TrialOutcome]]:
  """Returns the cases of a kind, and what runs one."""
  if kind == PROCESSES:
    return [cases_lib.Case(())], functools.partial(_run_cluster, job)
  num_events = max(job.num_events, len(job.faults))
  trials = make_trials(job.config, job.layout, num_events=num_events)
  if kind == GIVEN:
    return [cases_lib.Case(job.faults, job.num_events + 1)], trials.run
  if kind == "single":
    return cases_lib.single_deaths(trials.steps, every=job.every), trials.run
  first = job.seed if job.layout.number is None else job.layout.number
  if kind in cases_lib.KINDS:
    draw = functools.partial(cases_lib.draw_deaths, kind, trials.steps)
    return draw(num_cases=job.num_cases, seed=first), trials.run
  recovery, is_storm = trials.config.recovery, kind == "storm"
  goes_back = not is_storm and recovery.checkpoint
  storms = [
      cases_lib.Storm(
          num_events=job.num_events,
          at_once=max(1, recovery.num_failures) if is_storm else 2,
          seed=seed,
          kinds=("kill",) if is_storm else (*_MIXED, *["all"] * goes_back),
          goes_back=goes_back,
      )
      for seed in range(first, first + job.num_cases)
  ]
  return storms, trials.run


_alone: dict[str, str] = {}  # States of undisturbed runs of one process.


def _run_cluster(job: VerifyJob, case: cases_lib.Case) -> trials_lib.TrialOutcome:
  """Runs a layout as a cluster; raises `RuntimeError` unless it ends as one process does."""
  key, number = f"{job.config} {job.num_events}", job.layout.number
  if key not in _alone:
    settings = {**layouts_lib.split_batch(job.config), **layouts_lib.ALONE}
    _alone[key] = _find_state(job, "one process", ["launch.train"], settings)
  rng = random.Random(f"clusters {number}")
  command = ["launch.cluster", f"--random_kills={job.num_events}", f"--seed={number}"]
  command += [f"--kinds={rng.choice(_CLUSTER_KINDS)}", f"--zones={rng.choice(_ZONES)}"]
  state = _find_state(job, str(job.layout), command, dict(job.layout.settings))
  if state != _alone[key]:
    raise RuntimeError(f"{state[:12]} is not {_alone[key][:12]}, the state of one process")
  return trials_lib.TrialOutcome((), (), (), (), state)


def _find_state(job: VerifyJob, name: str, command: list[str], settings: dict[str, Any]) -> str:
  """Returns the hash of the state at the end of a run; raises `ValueError` if it fails."""
  settings |= {"num_steps": _STEPS_PER_EVENT * job.num_events + 1, "metrics.plots": False}
  command += [*job.arguments, *(f"--config.{key}={value}" for key, value in settings.items())]
  folder = pathlib.Path(tempfile.mkdtemp(prefix="bamboo_verify_"))  # Of a run that fails it stays.
  command = [sys.executable, "-m", *command, f"--workdir={folder / 'run'}"]
  try:
    interleave.call(command, folder, name=name, limit_secs=_LIMIT_SECS, prepare=None)
    state: str = json.loads((folder / "run/summary.json").read_text())["state_sha256"]
  except KeyboardInterrupt:
    shutil.rmtree(folder)
    raise
  shutil.rmtree(folder)
  return state
