"""Selects the case of a config, and makes the plan that all cases share."""

from collections.abc import Sequence
import dataclasses
import importlib.util
import os
import pathlib
import shlex
import tempfile

from bamboo_jax import base
from bamboo_jax import config as config_lib
from bamboo_jax.benchmarks import executors
from bamboo_jax.benchmarks import memory
from bamboo_jax.benchmarks import redundancy
from bamboo_jax.benchmarks import rivals
from bamboo_jax.benchmarks import shape
from bamboo_jax.benchmarks import turns
from bamboo_jax.metrics import plots
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import planner
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import executors as executors_lib


def run(
    config: config_lib.Config,
    *,
    worker: Sequence[str],
    train: Sequence[str],
    rival: str | None,
    out: str | None,
    formats: Sequence[str],
    num_rounds: int,
) -> None:
  """Runs the case of the config, and prints its results.

  `worker` is the command that serves one stage, without rank and core;
  `train` is the one that trains with the same config; `num_rounds` is that of
  `turns.Subject`.
  Raises `ValueError` if the config and the rival do not go together.
  """
  cores = sorted(os.sched_getaffinity(0))
  case = find_case(config)
  if case == "memory":
    memory.compare(config)
    return
  if case == "shape":
    folder = pathlib.Path(out or "runs/bench_shape")
    shape.compare(config, train=train, out=folder)
    return
  _check_case(config, rival, num_cores=len(cores))
  if case == "executors":
    plots.check()
  commands = [
      [*worker, f"--rank={rank}", f"--core={cores[rank % len(cores)]}"]
      for rank in range(config.pipeline.num_stages)
  ]
  with (
      tempfile.TemporaryDirectory() as folder,
      turns.Processes(commands) as ours,
  ):
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
    {"executors": executors, "redundancy": redundancy}[case].compare(
        ours, subject
    )


def find_case(config: config_lib.Config) -> str:
  """Returns the name of the case of a config."""
  if config.plan.memory_limit_gib is not None:
    return "memory"
  if config.model.name == "paced" and config.pipeline.num_pipelines > 1:
    return "shape"
  if config.pipeline.executor == "spmd":
    return "executors"
  return "redundancy" if config.redundancy.mode != "none" else "rivals"


def _check_case(
    config: config_lib.Config, rival: str | None, *, num_cores: int
) -> None:
  pipeline = config.pipeline
  has_replicas = config.redundancy.mode != "none"
  is_spmd = pipeline.executor == "spmd"
  is_paced = config.model.name == "paced"
  if rival and importlib.util.find_spec(rival) is None:
    raise ValueError(
        f"--rival={rival} needs the package {rival!r}; install the extra: pip "
        "install 'bamboo_jax[rivals]'."
    )
  if (has_replicas or is_spmd) and (
      rival or (pipeline.num_stages != 2 and not is_paced)
  ):
    raise ValueError(
        "Executors, and modes of redundancy, are compared without a rival, and "
        "on 2 stages if their nodes are not paced, got "
        f"num_stages={pipeline.num_stages}, --rival={rival}."
    )
  if is_spmd and not has_replicas:
    raise ValueError(
        "Executors are compared with and without redundancy, so "
        "config.redundancy.mode must not be 'none'."
    )
  too_few = pipeline.num_stages > num_cores and not is_paced
  if pipeline.num_pipelines != 1 or too_few:
    raise ValueError(
        "The benchmark takes one pipeline and a core per stage, got "
        f"num_pipelines={pipeline.num_pipelines}, "
        f"num_stages={pipeline.num_stages} and {num_cores} cores."
    )


def _prepare(
    config: config_lib.Config, ours: turns.Processes
) -> tuple[planner.Plan, str]:
  """Returns the plan, and the profile that it is made from."""
  cuts = executors_lib.find_cuts(config, build.make_task(config))
  # All at once: in a step the cores share memory and caches, too.
  answer, *_ = ours.ask("profile")
  profile = cost_model.from_json(answer)
  plan = build.make_plan(config, profile, cuts=cuts, is_cluster=True)
  bounds = plan.partition.bounds
  if len(bounds) > 2:  # Measures the transfers of this partition.
    transfer_ms = ours.ask(f"links {','.join(map(str, bounds))}")[0]
    profile = dataclasses.replace(
        profile, link_latency_ms=transfer_ms, link_bytes_per_ms=1e12
    )
    plan = build.make_plan(config, profile, cuts=cuts, is_cluster=True)
  return plan, cost_model.to_json(profile)
