"""One stage that `bamboo bench` starts; see `benchmarks.worker`."""

import dataclasses
import os

from absl import app, logging

from bamboo_jax.cli import flagset
from bamboo_jax.config import Config
from bamboo_jax.launch import cli


@dataclasses.dataclass(frozen=True)
class BenchWorkerFlags:
  """A stage, and where it runs."""

  config: Config = cli.config("bench_peer", "What to run.")
  rank: int | None = flagset.flag(None, "Stage of this worker.")
  core: int | None = flagset.flag(None, "Core to run on.")


def main(unused_argv: object) -> None:
  """Answers commands until the input ends."""
  flags = flagset.read(BenchWorkerFlags, ())
  assert flags.core is not None
  os.sched_setaffinity(0, {flags.core})  # Before anything counts the cores.
  from bamboo_jax.benchmarks import worker
  from bamboo_jax.train.setup import accept

  logging.set_verbosity(logging.WARNING)
  worker.serve(accept.accept(flags.config), rank=flags.rank)


if __name__ == "__main__":
  flagset.define(BenchWorkerFlags)
  app.run(main)
