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

If the config has redundancy, its modes take turns. If its executor is `spmd`,
both executors take turns, with and without redundancy. If it has a limit of
memory, the need of nodes is compared with its prediction. If its model is
"paced", nodes die one after the other, and throughput is compared with the
number of survivors. Results and columns of the tables: `docs/measurements/`.
"""

import sys

from absl import flags

from bamboo_jax.launch import bench_flags as given
from bamboo_jax.launch import cli

flags.adopt_module_key_flags(given)


def main() -> None:
  """Runs the benchmark and prints its results."""
  from bamboo_jax.benchmarks import cases

  given.check(cases.find_case(given.CONFIG.value))
  arguments = cli.find_arguments(("config",), sys.argv[1:])
  cache = cli.find_arguments(("program_cache",), sys.argv[1:])
  python = (sys.executable, "-m")
  cases.run(
      given.CONFIG.value,
      worker=[*python, "bamboo_jax.launch.bench_worker", *arguments],
      train=[*python, "bamboo_jax.launch.train", *arguments, *cache],
      rival=given.RIVAL.value,
      out=given.OUT.value,
      formats=given.FORMAT.value,
      num_rounds=given.PAIRS.value,
  )


if __name__ == "__main__":
  cli.run(main)
