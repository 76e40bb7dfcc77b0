r"""Measures step times of a pipeline with one process and one core per stage.

bamboo bench --config=bench_peer
bamboo bench --config=bench_peer --rival=torch
bamboo bench --config=bench_redundancy
bamboo bench --config=bench_executors
bamboo bench --config=bench_memory
bamboo bench --config=bench_shape

Profiles the layers, plans, runs steps, and compares measured and predicted step
times. With `--rival=torch` (extra `rivals`) the same model, batch, split and
cores under `torch.distributed.pipelining` take turns with ours; the last line
is the median ratio of step times, ours to torch.

With `bench_redundancy` its modes take turns; with `bench_executors` both
executors do, with and without redundancy; `bench_memory` compares the need of
nodes with its prediction; in `bench_shape` nodes die one after the other, and
throughput is compared with the number of survivors. A config of another name
needs `--case`. Results and columns of the tables: `docs/measurements/`.
"""

import dataclasses
import sys

from bamboo_jax.cli import flagset
from bamboo_jax.config import Config
from bamboo_jax.launch import cli, shared


@dataclasses.dataclass(frozen=True)
class BenchFlags:
  """What to measure."""

  config: Config = cli.config("bench_peer", "What to measure.")
  case: str | None = flagset.flag(None, "What to run, if not by the config.")
  rival: str | None = flagset.flag(None, "Whom to compare with.", choices=("torch",))
  pairs: int = flagset.flag(200, "Steps of each.", least=5)
  out: str | None = flagset.flag(None, "Where files go; by default runs/bench_CASE.")
  figure_format: tuple[str, ...] = shared.figure_format()
  program_cache: str | None = shared.program_cache()


# The flags that have no effect, by case.
_UNUSED = {
    "memory": ("rival", "pairs", "out", "figure_format", "program_cache"),
    "shape": ("rival", "pairs", "figure_format"),
    "rivals": ("out", "figure_format", "program_cache"),
    "executors": ("rival", "program_cache"),
    "redundancy": ("rival", "figure_format", "program_cache"),
}


def main(flags: BenchFlags) -> None:
  """Runs the benchmark and prints its results."""
  from bamboo_jax.benchmarks import cases

  case = cases.find_case(flags.case, [flagset.given_config()])
  flagset.refuse(_UNUSED[case], f"in the benchmark {case!r}")
  config = flagset.to_argv(flags, "config")
  python = (sys.executable, "-m")
  cases.run(
      flags.config,
      case=case,
      worker=[*python, "bamboo_jax.launch.bench_worker", *config],
      train=[
          *(*python, "bamboo_jax.launch.train", *config),
          *flagset.to_argv(flags, "program_cache"),
      ],
      rival=flags.rival,
      out=flags.out,
      formats=flags.figure_format,
      num_rounds=flags.pairs,
  )


if __name__ == "__main__":
  cli.run(main)
