"""Runs cases of deaths on one config after the other, and prints lines."""

import collections
from collections.abc import Sequence
import dataclasses
import itertools
import sys
import time

import tqdm

from bamboo_jax import config as config_lib
from bamboo_jax.runtime import devices as devices_lib, program_cache
from bamboo_jax.testing.fault_sweep import (
    cases as cases_lib,
    storm as storm_lib,
    trials as trials_lib,
)
from bamboo_jax.train.setup import sizes


def make_configs(
    config: config_lib.Config,
    *,
    num_stages: Sequence[int],
    num_pipelines: Sequence[int],
    num_microbatches: Sequence[int],
    modes: Sequence[str],
) -> list[config_lib.Config]:
  """Returns a config for each combination of sizes and mode of redundancy."""
  choices = {
      "pipeline.num_stages": num_stages,
      "pipeline.num_pipelines": num_pipelines,
      "pipeline.num_microbatches": num_microbatches,
      "redundancy.mode": modes,
  }
  return [
      config.changed(dict(zip(choices, values, strict=True)))
      for values in itertools.product(*choices.values())
  ]


def sweep(
    configs: Sequence[config_lib.Config],
    kinds: Sequence[str],
    *,
    every: int,
    num_cases: int,
    num_events: int,
    seed: int,
) -> int:
  """Runs all cases of some kinds, see `cases`; returns how many have failed.

  All configs are of one model. Of single deaths one of `every` is tried, of
  each other kind `num_cases` random ones; storms have `num_events`.
  """
  num_devices, num_late = max(map(sizes.num_nodes, configs)), 2 * num_events
  is_program = any(c.pipeline.executor == "spmd" for c in configs)
  if is_program and "storm" in kinds:
    num_devices += num_late  # Nodes that share one run no program.
  devices_lib.use_virtual_devices(num_devices, distinct=True)
  cache, whole, num_failed = program_cache.ProgramCache(), None, 0
  for config in configs:
    start, size = time.perf_counter(), _render_size(config)
    trial = trials_lib.Trials(config, cache=cache, whole=whole, num_late=num_late)
    whole = trial.whole
    secs = time.perf_counter() - start
    print(f"{size} prepare_secs={secs:.1f}", flush=True)
    for kind in kinds:
      if kind == "single":
        cases = cases_lib.single_deaths(trial.steps, every=every)
      elif kind == "storm":
        at_once = max(1, config.recovery.num_failures)
        seeds = range(seed, seed + num_cases)
        cases = [storm_lib.Storm(num_events=num_events, at_once=at_once, seed=s) for s in seeds]
      else:
        cases = cases_lib.draw_deaths(kind, trial.steps, num_cases=num_cases, seed=seed)
      num_failed += _run(trial, cases, name=f"{size} kind={kind}", may_compile=is_program)
  print(f"failed={num_failed}")
  return num_failed


def _run(
    trial: trials_lib.Trials,
    cases: Sequence[cases_lib.Case | storm_lib.Storm],
    *,
    name: str,
    may_compile: bool,
) -> int:
  """Runs the cases of a kind; returns how many have failed.

  Rings of nodes after several deaths are compiled when they are needed.
  """
  failed = 0
  rungs = collections.Counter[str]()
  redone = collections.Counter[str]()
  start = time.perf_counter()
  storms = [case for case in cases if isinstance(case, storm_lib.Storm)]
  with tqdm.tqdm(cases, desc=name, unit="case", disable=not sys.stderr.isatty()) as bar:
    for case in bar:
      try:
        outcome = trial.run(case)
        rungs.update(outcome.rungs)
        redone.update(rests=len(outcome.redone))
        for counts in outcome.redone:
          redone.update(dataclasses.asdict(counts))
      except Exception as error:  # The others are run whatever one does.
        failed += 1
        bar.write(
            f"FAILED {name} faults={str(case).replace(' ', ';')} "
            f"{type(error).__name__}: {error}"
        )
  secs = time.perf_counter() - start
  shown = ",".join(f"{rung}:{count}" for rung, count in sorted(rungs.items()))
  for storm in storms:
    print(f"events={len(storm.drawn)} compiled={storm.num_compiled}")
    failed += storm.num_compiled > 0 and not may_compile
  print(
      f"{name} cases={len(cases)} same={len(cases) - failed} "
      f"failed={failed} rungs={shown or 'none'} "
      + "".join(f"{k}={v} " for k, v in redone.items() if redone["rests"])
      + f"secs={secs:.1f} "
      f"ms_per_case={1e3 * secs / max(len(cases), 1):.0f}",
      flush=True,
  )
  return failed


def _render_size(config: config_lib.Config) -> str:
  pipeline = config.pipeline
  return (
      f"stages={pipeline.num_stages} microbatches={pipeline.num_microbatches} "
      f"pipelines={pipeline.num_pipelines} mode={config.redundancy.mode}"
  )
