r"""Measures step times of a pipeline with one process and one core per stage.

python -m launch.bench --config=configs/bench_peer.py
python -m launch.bench --config=configs/bench_peer.py --peer=torch
python -m launch.bench --config=configs/bench_redundancy.py
python -m launch.bench --config=configs/bench_executors.py

Profiles the layers, plans, runs steps, and compares the measured with the
predicted step time. With `--peer=torch` (extra `peers`) the same model, batch,
split and cores under `torch.distributed.pipelining` take turns with ours, step
by step; the last line is the median ratio of step times, ours to torch.

If the config has redundancy, its modes take turns instead, and nodes die in
some more steps; see `docs/redundancy.md`. If its executor is `spmd`, both
executors take turns, with and without redundancy; see `docs/executors.md`.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

from absl import flags
import tqdm

from bamboo_jax.base import ports as ports_lib
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import profile_json
from launch import cli
from launch import config_flag
from launch import processes
from launch import ratios
from launch.redundancy import compare

_CONFIG = config_flag.define("configs/bench_peer.py", "What to run.")
_PEER = flags.DEFINE_enum("peer", None, ["torch"], "Whom to compare with.")
_PAIRS = flags.DEFINE_integer("pairs", 200, "Steps of each.", lower_bound=5)
_DEATHS = flags.DEFINE_integer(
    "deaths", 8, "Times of death in a step, of each node.", lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
    "repeats", 5, "How often each death is repeated.", lower_bound=1
)
_OUT = flags.DEFINE_string(
    "out",
    None,
    "Where files about redundancy or executors go; by default "
    "runs/bench_redundancy or runs/bench_executors.",
)
_WARMUP = 5


def main(argv: Sequence[str]) -> None:
  """Runs the benchmark and prints what came out."""
  cli.check_no_arguments(argv)
  _check_peer()
  config = _CONFIG.value
  num_stages = config.pipeline.num_stages
  is_redundant = config.redundancy.mode != "none"
  is_spmd = config.pipeline.executor == "spmd"
  if (is_redundant or is_spmd) and (_PEER.value or num_stages != 2):
    raise ValueError(
        "Executors, and modes of redundancy, are compared on 2 stages and "
        f"without a peer, got num_stages={num_stages}, --peer={_PEER.value}."
    )
  if is_spmd and not is_redundant:
    raise ValueError(
        "Executors are compared with and without redundancy, so "
        "config.redundancy.mode must not be 'none'."
    )
  cores = sorted(os.sched_getaffinity(0))
  if config.pipeline.num_pipelines != 1 or num_stages > len(cores):
    raise ValueError(
        "The benchmark takes one pipeline and a core per stage, got "
        f"num_pipelines={config.pipeline.num_pipelines}, "
        f"num_stages={num_stages} and {len(cores)} cores."
    )
  with contextlib.ExitStack() as stack:
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    ours = processes.Processes(_our_commands(num_stages, cores))
    stack.callback(ours.close)
    ours.wait_ready()
    if is_spmd:
      _compare_executors(config, ours, folder)
      return
    plan, path = _prepare(config, ours, folder)
    if is_redundant:
      compare.compare_modes(
          ours,
          plan,
          profile_path=path,
          redundancy=config.redundancy,
          num_rounds=_PAIRS.value,
          num_deaths=_DEATHS.value,
          num_repeats=_REPEATS.value,
          out=pathlib.Path(_OUT.value or "runs/bench_redundancy"),
      )
      return
    ours.ask(f"build {path}")
    peer = None
    if _PEER.value:
      peer = processes.Processes(
          _torch_commands(config, plan.partition.bounds, cores)
      )
      stack.callback(peer.close)
      peer.wait_ready()
    times, parts, peer_times = _run_steps(ours, peer, _PAIRS.value)
  _report(plan, times, parts, peer_times)


def _check_peer() -> None:
  """Raises `ValueError` if the peer that is asked for is not installed."""
  if _PEER.value and importlib.util.find_spec(_PEER.value) is None:
    raise ValueError(
        f"--peer={_PEER.value} needs the package {_PEER.value!r}; install the "
        "extra: pip install -e '.[peers]'."
    )


def _compare_executors(
    config: Any, ours: processes.Processes, folder: pathlib.Path
) -> None:
  """Compares executors, with stages that both can run."""
  from bamboo_jax.train import build
  from bamboo_jax.train import build_program
  from launch.executors import compare as compare_lib

  task = build.make_task(config)
  cuts = build_program.find_cuts(config, task)
  plan, path = _prepare(config, ours, folder, cuts=cuts)
  compare_lib.compare_executors(
      ours,
      plan,
      config=config,
      task=task,
      profile_path=path,
      num_rounds=_PAIRS.value,
      out=pathlib.Path(_OUT.value or "runs/bench_executors"),
  )


def _prepare(
    config: Any,
    ours: processes.Processes,
    folder: pathlib.Path,
    *,
    cuts: Sequence[int] | None = None,
) -> tuple[Any, pathlib.Path]:
  """Profiles and plans; returns the plan and the file of the profile."""
  from bamboo_jax.train import build

  (answer,) = ours.ask("profile", ranks=[0])
  profile = profile_json.from_json(json.loads(answer)["profile"])
  bounds = build.make_plan(config, profile, cuts=cuts).partition.bounds
  if len(bounds) > 2:
    answers = ours.ask(f"links {','.join(map(str, bounds))}")
    profile = _with_link(profile, json.loads(answers[0])["transfer_ms"])
  path = folder / "profile.json"
  path.write_text(profile_json.to_json(profile))
  return build.make_plan(config, profile, cuts=cuts), path


def _with_link(
    profile: cost_model.Profile, transfer_ms: float
) -> cost_model.Profile:
  """Returns the profile with the measured time of the transfers at hand."""
  return dataclasses.replace(
      profile, link_latency_ms=transfer_ms, link_bytes_per_ms=1e12
  )


def _run_steps(
    ours: processes.Processes,
    peer: processes.Processes | None,
    num_pairs: int,
) -> tuple[list[float], list[list[dict[str, Any]]], list[float]]:
  """Returns seconds of our steps, their parts by stage, and the peer's."""
  times, parts, peer_times = [], [], []
  progress = tqdm.tqdm(
      range(_WARMUP + num_pairs), disable=not sys.stderr.isatty()
  )
  for step in progress:
    start = time.perf_counter()
    answers = ours.ask(f"step {step}")
    times.append(time.perf_counter() - start)
    parts.append([json.loads(answer) for answer in answers])
    shown = f"round={step + 1} step_ms={1e3 * times[-1]:.1f}"
    if peer is not None:
      start = time.perf_counter()
      peer.ask("step")
      peer_times.append(time.perf_counter() - start)
      shown += f" torch_step_ms={1e3 * peer_times[-1]:.1f}"
    if progress.disable:
      print(shown, flush=True)
  return times[_WARMUP:], parts[_WARMUP:], peer_times[_WARMUP:]


def _report(
    plan: Any,
    times: Sequence[float],
    parts: Sequence[Sequence[dict[str, Any]]],
    peer_times: Sequence[float],
) -> None:
  """Prints what was predicted and measured; the ratio last."""
  predicted = plan.step_time
  measured_ms = 1e3 * statistics.median(times)
  compute_ms = 1e3 * statistics.median(
      max(p["compute_secs"] for p in step) for step in parts
  )
  apply_ms = 1e3 * statistics.median(
      max(p["apply_secs"] for p in step) for step in parts
  )
  print(f"partition={plan.partition.bounds} steps={len(times)}")
  print(f"final_loss={parts[-1][-1]['loss']:.4f}")
  print(f"compute_ms={compute_ms:.1f} predicted={predicted.compute_ms:.1f}")
  print(f"update_ms={apply_ms:.1f} predicted={predicted.update_ms:.1f}")
  print(f"step_ms={measured_ms:.1f} predicted={predicted.total_ms:.1f}")
  print(f"predicted_to_measured={predicted.total_ms / measured_ms:.3f}")
  if peer_times:
    ratio = ratios.paired_ratio(times, peer_times)
    print(f"torch_step_ms={1e3 * statistics.median(peer_times):.1f}")
    print(
        f"ratio_interval_95=[{ratio.low:.3f}, {ratio.high:.3f}] "
        f"pairs={ratio.num_pairs}"
    )
    print(f"ratio_to_torch={ratio.median:.3f}")


def _our_commands(num_stages: int, cores: Sequence[int]) -> list[list[str]]:
  config = [a for a in sys.argv[1:] if a.startswith("--config")]
  port = ports_lib.free_port()
  return [
      [sys.executable, "-m", "launch.bench_worker"]
      + (config or [f"--config={_CONFIG.default}"])
      + [f"--rank={rank}", f"--core={cores[rank]}", f"--port={port}"]
      for rank in range(num_stages)
  ]


def _torch_commands(
    config: Any, bounds: Sequence[int], cores: Sequence[int]
) -> list[list[str]]:
  options = config.model.options
  sizes = dict(
      port=ports_lib.free_port(),
      num_blocks=options.num_blocks,
      width=options.width,
      num_heads=options.num_heads,
      sequence_length=options.sequence_length,
      vocab_size=options.vocab_size,
      batch_size=config.pipeline.num_microbatches
      * config.pipeline.microbatch_size,
      num_microbatches=config.pipeline.num_microbatches,
      bounds=",".join(map(str, bounds)),
      learning_rate=config.optimizer.learning_rate,
  )
  common = [f"--{key}={value}" for key, value in sizes.items()]
  worker = [sys.executable, "-m", "launch.peers.torch_worker"]
  return [
      [*worker, *common, f"--rank={rank}", f"--core={cores[rank]}"]
      for rank in range(len(bounds) - 1)
  ]


if __name__ == "__main__":
  cli.run(main)
