"""Runs a benchmark, with the plan that most of them share."""

from collections.abc import Sequence
import dataclasses
import importlib.util
import os
import pathlib
import shlex
import tempfile

from bamboo_jax import base, config as config_lib
from bamboo_jax.benchmarks import executors, memory, redundancy, rivals, shape, turns
from bamboo_jax.metrics import plots
from bamboo_jax.plan import cost_model, planner
from bamboo_jax.train.setup import build, executors as executors_lib

# The benchmarks, each with its packaged config.
CASES = {
    "rivals": "bench_peer",
    "redundancy": "bench_redundancy",
    "executors": "bench_executors",
    "memory": "bench_memory",
    "shape": "bench_shape",
}
_NEEDS = {
    "rivals": "redundancy.mode='none' and pipeline.executor='rows'",
    "redundancy": "another redundancy.mode than 'none' and executor='rows'",
    "executors": "another redundancy.mode than 'none' and executor='spmd'",
    "shape": "model.name='paced' and pipeline.num_pipelines from 2",
}


def run(
    config: config_lib.Config,
    *,
    case: str,
    worker: Sequence[str],
    train: Sequence[str],
    rival: str | None,
    out: str | None,
    formats: Sequence[str],
    num_rounds: int,
) -> None:
  """Runs a case, and prints its results.

  `case` is one of `CASES`; `worker` is the command that serves one stage,
  without rank and core; `train` is the one that trains with the same config;
  `num_rounds` is that of `turns.Subject`.
  Raises `ValueError` if the config is not one for the case.
  """
  cores = sorted(os.sched_getaffinity(0))
  check_config(config, case)
  if case == "memory":
    memory.compare(config)
    return
  if case == "shape":
    folder = pathlib.Path(out or "runs/bench_shape")
    shape.compare(config, train=train, out=folder)
    return
  _check_processes(config, rival, num_cores=len(cores))
  if case == "executors":
    plots.check()
  commands = [
      [*worker, f"--rank={rank}", f"--core={cores[rank % len(cores)]}"]
      for rank in range(config.pipeline.num_stages)
  ]
  with tempfile.TemporaryDirectory() as folder, turns.Processes(commands) as ours:
    ours.ask(shlex.join(["connect", *ours.ask("address")]))
    plan, profile = _prepare(config, ours)
    path = pathlib.Path(folder) / "profile.json"
    path.write_text(profile)
    subject = turns.Subject(
        config=config,
        plan=plan,
        profile_path=shlex.quote(str(path)),
        out=pathlib.Path(out or f"runs/bench_{case}"),
        formats=formats,
        num_rounds=num_rounds,
    )
    if case == "rivals":
      rivals.compare(ours, subject, rival=rival, cores=cores)
      return
    subject.out.mkdir(parents=True, exist_ok=True)
    base.write_atomically(subject.out / "profile.json", profile)
    {"executors": executors, "redundancy": redundancy}[case].compare(ours, subject)


def find_case(given: str | None, paths: Sequence[str]) -> str:
  """Returns the case that is `given`, or that of a packaged config.

  `paths` are those of the command line. Raises `ValueError` for a config of
  another name: what is in a config decides nothing.
  """
  path = [CASES["rivals"], *paths][-1]
  name = pathlib.PurePath(path.partition(":")[0]).stem
  by_config = {config: case for case, config in CASES.items()}
  found = given or by_config.get(name)
  if found not in CASES:
    raise ValueError(
        f"--case must say which benchmark runs with --config={path}: one of "
        f"{', '.join(CASES)}, got {given}."
    )
  return found


def check_config(config: config_lib.Config, case: str) -> None:
  """Raises `ValueError` unless the config is one for the case."""
  pipeline, mode = config.pipeline, config.redundancy.mode
  is_paced = config.model.name == "paced"
  is_wrong = {
      "rivals": mode != "none" or pipeline.executor != "rows",
      "redundancy": mode == "none" or pipeline.executor != "rows",
      "executors": mode == "none" or pipeline.executor != "spmd",
      "shape": not is_paced or pipeline.num_pipelines == 1,
      "memory": False,
  }
  if is_wrong[case]:
    raise ValueError(
        f"The benchmark {case!r} needs {_NEEDS[case]}, got "
        f"redundancy.mode={mode!r}, pipeline.executor={pipeline.executor!r}, "
        f"model.name={config.model.name!r}, "
        f"pipeline.num_pipelines={pipeline.num_pipelines}."
    )
  if case in ("redundancy", "executors"):
    if pipeline.num_stages != 2 and not is_paced:
      raise ValueError(
          f"The benchmark {case!r} takes 2 stages if their nodes are not "
          f"paced, got pipeline.num_stages={pipeline.num_stages}."
      )


def _check_processes(config: config_lib.Config, rival: str | None, *, num_cores: int) -> None:
  pipeline, is_paced = config.pipeline, config.model.name == "paced"
  if rival and importlib.util.find_spec(rival) is None:
    raise ValueError(
        f"--rival={rival} needs the package {rival!r}; install the extra: pip "
        "install 'bamboo_jax[rivals]'."
    )
  too_few = pipeline.num_stages > num_cores and not is_paced
  if pipeline.num_pipelines != 1 or too_few:
    raise ValueError(
        "The benchmark takes one pipeline and a core per stage, got "
        f"num_pipelines={pipeline.num_pipelines}, "
        f"num_stages={pipeline.num_stages} and {num_cores} cores."
    )


def _prepare(config: config_lib.Config, ours: turns.Processes) -> tuple[planner.Plan, str]:
  """Returns the plan, and the profile that it is made from."""
  cuts = executors_lib.find_cuts(config, build.make_task(config))
  # All at once: in a step the cores share memory and caches, too.
  answer, *_ = ours.ask("profile")
  profile = cost_model.from_json(answer)
  plan = build.make_plan(config, profile, cuts=cuts, is_cluster=True)
  bounds = plan.partition.bounds
  if len(bounds) > 2:  # Measures the transfers of this partition.
    transfer_ms = ours.ask(f"links {','.join(map(str, bounds))}")[0]
    profile = dataclasses.replace(profile, link_latency_ms=transfer_ms, link_bytes_per_ms=1e12)
    plan = build.make_plan(config, profile, cuts=cuts, is_cluster=True)
  return plan, cost_model.to_json(profile)
