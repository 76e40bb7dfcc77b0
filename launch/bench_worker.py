"""One stage that `bamboo bench` starts; see `benchmarks.worker`."""

import os

from absl import app, flags, logging

from bamboo_jax.launch import config_flag

_CONFIG = config_flag.define("bench_peer", "What to run.")
_RANK = flags.DEFINE_integer("rank", None, "Stage of this worker.")
_CORE = flags.DEFINE_integer("core", None, "Core to run on.")


def main(unused_argv: object) -> None:
  """Answers commands until the input ends."""
  assert _CORE.value is not None
  os.sched_setaffinity(0, {_CORE.value})  # Before anything counts the cores.
  from bamboo_jax.benchmarks import worker
  from bamboo_jax.train.setup import accept

  logging.set_verbosity(logging.WARNING)
  worker.serve(accept.accept(_CONFIG.value), rank=_RANK.value)


if __name__ == "__main__":
  app.run(main)
