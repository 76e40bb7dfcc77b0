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

import sys

from absl import flags

from bamboo_jax.cli import config_check
from bamboo_jax.launch import cli, config_flag, figure_flags, flag_checks, shared_flags

_CONFIG = config_flag.define("bench_peer", "What to measure.")
_CASE = flags.DEFINE_string("case", None, "What to run, if not by the config.")
_RIVAL = flags.DEFINE_enum("rival", None, ["torch"], "Whom to compare with.")
_PAIRS = flags.DEFINE_integer("pairs", 200, "Steps of each.", lower_bound=5)
_OUT = flags.DEFINE_string("out", None, "Where files go; by default runs/bench_CASE.")
_FORMAT = figure_flags.define()
_CACHE = shared_flags.define_program_cache()

# The flags that have an effect, by case.
_USED = {
    "memory": (),
    "shape": (_OUT, _CACHE),
    "rivals": (_RIVAL, _PAIRS),
    "executors": (_PAIRS, _OUT, _FORMAT),
    "redundancy": (_PAIRS, _OUT),
}


def main() -> None:
  """Runs the benchmark and prints its results."""
  from bamboo_jax.benchmarks import cases

  case = cases.find_case(_CASE.value, config_check.find_paths(sys.argv[1:]))
  used = {holder.name for holder in _USED[case]}
  holders = (_RIVAL, _PAIRS, _OUT, _FORMAT, _CACHE)
  unused = [holder for holder in holders if holder.name not in used]
  flag_checks.check_unused(unused, f"in the benchmark {case!r}")
  arguments = cli.find_arguments(("config",), sys.argv[1:])
  cache = cli.find_arguments(("program_cache",), sys.argv[1:])
  python = (sys.executable, "-m")
  cases.run(
      _CONFIG.value,
      case=case,
      worker=[*python, "bamboo_jax.launch.bench_worker", *arguments],
      train=[*python, "bamboo_jax.launch.train", *arguments, *cache],
      rival=_RIVAL.value,
      out=_OUT.value,
      formats=_FORMAT.value,
      num_rounds=_PAIRS.value,
  )


if __name__ == "__main__":
  cli.run(main)
