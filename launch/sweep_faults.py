r"""Kills nodes of a small training run at every possible point, and compares.

bamboo sweep_faults
bamboo sweep_faults --num_stages=4 --num_microbatches=4 \
  --num_pipelines=2 --modes=eager --every=3
bamboo sweep_faults --num_stages=4 --num_pipelines=2 \
  --kinds=pair,second,neighbours,two_stages --num_cases=100
bamboo sweep_faults --kinds=storm --num_cases=1 --num_events=100 \
  --num_stages=2 --num_pipelines=6 --num_microbatches=2 --modes=eager \
  --config.redundancy.spares=1 --config.pipeline.num_shares=12 \
  --config.pipeline.layout=templates

Every node dies before every instruction of its row and before every phase of a
step. That step, and the next one on the survivors, must end in the state of a
run without deaths, to the bit, on any rung. Combinations of several deaths are
random. Prints a line for each size, mode and kind, with the rungs taken, and
one for each failed case: its deaths, in the format of a fault file, and the
differences. The exit code is 1 if a case failed.
"""

import sys

from absl import flags

from bamboo_jax.launch import cli, config_flag, shared_flags

_CONFIG = config_flag.define("sweep_faults", "What to train.")
_NUM_STAGES = flags.DEFINE_list("num_stages", ["2", "3", "4"], "Stages.")
_NUM_MICROBATCHES = flags.DEFINE_list(
    "num_microbatches", ["1", "4"], "Microbatches of each pipeline."
)
_NUM_PIPELINES = flags.DEFINE_list("num_pipelines", ["1", "2"], "Pipelines.")
_MODES = flags.DEFINE_list("modes", ["eager", "lazy"], "Modes of redundancy.")
_KINDS = flags.DEFINE_list(
    "kinds",
    ["single"],
    "Nodes that die: single, one node; pair, two that leave a copy of all "
    "stages; neighbours, two that do not; second, one more in the recovery; "
    "two_stages, in the next step the one that runs the lost stage too; storm, "
    "--num_events deaths and joins, and rows may compile nothing.",
)
_EVERY = flags.DEFINE_integer(
    "every", 1, "Single deaths: before every n-th instruction.", lower_bound=1
)
_NUM_CASES = flags.DEFINE_integer(
    "num_cases", 50, "Random cases of each other kind.", lower_bound=1
)
_NUM_EVENTS = flags.DEFINE_integer("num_events", 20, "Deaths and joins of a storm.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of random cases.")


def main() -> None:
  """Runs all cases; prints the outcome and exits."""
  from bamboo_jax.testing.fault_sweep import sweep

  configs = sweep.make_configs(
      _CONFIG.value,
      num_stages=shared_flags.read_numbers(_NUM_STAGES),
      num_pipelines=shared_flags.read_numbers(_NUM_PIPELINES),
      num_microbatches=shared_flags.read_numbers(_NUM_MICROBATCHES),
      modes=_MODES.value,
  )
  num_failed = sweep.sweep(
      configs,
      _KINDS.value,
      every=_EVERY.value,
      num_cases=_NUM_CASES.value,
      num_events=_NUM_EVENTS.value,
      seed=_SEED.value,
  )
  sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
  cli.run(main)
