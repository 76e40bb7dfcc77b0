r"""Simulates training on preemptible nodes.

bamboo simulate --config=sim/compare --workdir=runs/sim
bamboo simulate --config=sim/compare --workdir=runs/sim \
  --trace=trace.csv

The config's `experiment` is one of those below, and its other keys are the
options of that experiment. Nothing runs on a device. The same command resumes.
docs/research/simulator.md explains what is modelled.
"""

import dataclasses
import pathlib
import sys
from typing import Any

from bamboo_jax import base
from bamboo_jax.cli import flagset
from bamboo_jax.experiments import compare, provenance, unused
from bamboo_jax.launch import cli, shared
from bamboo_jax.reproductions.bamboo import table as bamboo_bert
from bamboo_jax.reproductions.oobleck import evaluation as oobleck

# What `config.experiment` may be, all called with the same arguments.
_EXPERIMENTS = {
    "bamboo_artifact": bamboo_bert.run,
    "compare": compare.run,
    "oobleck_artifact": oobleck.run,
}


@dataclasses.dataclass(frozen=True)
class SimulateFlags:
  """What to simulate."""

  config: Any = cli.config(None, "What to simulate.")
  workdir: str = shared.workdir("Where everything is written.")
  trace: str | None = flagset.flag(None, "File with the preemptions; else they are generated.")
  figure_format: tuple[str, ...] = shared.figure_format()
  jobs: shared.JobFlags = flagset.part(shared.JobFlags)


@shared.ending
def main(flags: SimulateFlags) -> None:
  """Runs the experiment of the config."""
  config = flags.config
  name = config.get("experiment")
  if name not in _EXPERIMENTS:
    raise ValueError(base.suggest(str(name), _EXPERIMENTS, what="experiment"))
  if name == "compare":
    given = flagset.given_keys()
    flagset.refuse_texts(*unused.find_unused(config, trace=flags.trace, given=given))
  if not config.get("plots", True):
    flagset.refuse(["figure_format"], "with config.plots=False")
  where = flags.jobs.read(flags.workdir)
  workdir = pathlib.Path(flags.workdir)
  _EXPERIMENTS[name](
      config, workdir=workdir, trace=flags.trace, formats=flags.figure_format, where=where
  )
  # Last, as experiments check their options.
  provenance.write(
      workdir,
      command=["bamboo", "simulate", *sys.argv[1:]],
      config=config.to_json(),
      trace=flags.trace,
  )
  where.clear()


if __name__ == "__main__":
  cli.run(main)
