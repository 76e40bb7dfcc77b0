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

If the config has redundancy, its modes take turns, and nodes die in some more
steps; see `docs/redundancy.md`. If its executor is `spmd`, both executors take
turns, with and without redundancy; see `docs/executors.md`. If it has a limit
of memory, what nodes need is compared with what was predicted; see
`docs/redundancy.md`. If its model is "paced", nodes die one after the other,
and throughput is compared with what is left of them; see `docs/paced.md`.
"""

import sys

from absl import flags

from bamboo_jax.launch import cli
from bamboo_jax.launch import config_flag
from bamboo_jax.launch import shared_flags

_CONFIG = config_flag.define("bench_peer", "What to run.")
_RIVAL = flags.DEFINE_enum("rival", None, ["torch"], "Whom to compare with.")
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
    "Where files go; by default runs/bench_redundancy, runs/bench_executors or "
    "runs/bench_shape.",
)
shared_flags.define_program_cache()


def main() -> None:
  """Runs the benchmark and prints its results."""
  from bamboo_jax.bench import cases

  arguments = cli.find_arguments(("config",), sys.argv[1:])
  cache = cli.find_arguments(("program_cache",), sys.argv[1:])
  python = (sys.executable, "-m")
  cases.run(
      _CONFIG.value,
      worker=[*python, "bamboo_jax.launch.bench_worker", *arguments],
      train=[*python, "bamboo_jax.launch.train", *arguments, *cache],
      rival=_RIVAL.value,
      out=_OUT.value,
      num_rounds=_PAIRS.value,
      num_deaths=_DEATHS.value,
      num_repeats=_REPEATS.value,
  )


if __name__ == "__main__":
  cli.run(main)
