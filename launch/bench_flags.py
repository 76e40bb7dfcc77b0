"""Flags of `bamboo bench`, and the cases that use them."""

from absl import flags

from bamboo_jax.launch import config_flag
from bamboo_jax.launch import figure_flags
from bamboo_jax.launch import flag_checks
from bamboo_jax.launch import shared_flags

CONFIG = config_flag.define("bench_peer", "What to run.")
RIVAL = flags.DEFINE_enum("rival", None, ["torch"], "Whom to compare with.")
PAIRS = flags.DEFINE_integer("pairs", 200, "Steps of each.", lower_bound=5)
OUT = flags.DEFINE_string(
    "out",
    None,
    "Where files go; by default runs/bench_redundancy, runs/bench_executors or "
    "runs/bench_shape.",
)
FORMAT = figure_flags.define()
CACHE = shared_flags.define_program_cache()

# The flags that have an effect, by case.
_USED = {
    "memory": (),
    "shape": (OUT, CACHE),
    "rivals": (RIVAL, PAIRS),
    "executors": (PAIRS, OUT, FORMAT),
    "redundancy": (PAIRS, OUT),
}


def check(case: str) -> None:
  """Raises `ValueError` if a flag is given that the case does not use."""
  holders = (RIVAL, PAIRS, OUT, FORMAT, CACHE)
  used = {holder.name for holder in _USED[case]}
  unused = [holder for holder in holders if holder.name not in used]
  flag_checks.check_unused(unused, f"in the benchmark {case!r}")
