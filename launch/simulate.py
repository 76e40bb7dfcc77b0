r"""Simulates training on preemptible nodes.

bamboo simulate --config=sim/compare --workdir=runs/sim
bamboo simulate --config=sim/compare --workdir=runs/sim \
  --trace=trace.csv

The config's `experiment` is one of those below, and its other keys are the
options of that experiment. Nothing runs on a device. The same command resumes.
docs/research/simulator.md explains what is modelled.
"""

import pathlib
import sys

from absl import flags

from bamboo_jax import base
from bamboo_jax.experiments import compare, provenance, unused
from bamboo_jax.launch import cli, config_flag, figure_flags, flag_checks, shared_flags, sweep_flags
from bamboo_jax.reproductions.bamboo import table as bamboo_bert
from bamboo_jax.reproductions.oobleck import evaluation as oobleck

# What `config.experiment` may be, all called with the same arguments.
_EXPERIMENTS = {
    "bamboo_artifact": bamboo_bert.run,
    "compare": compare.run,
    "oobleck_artifact": oobleck.run,
}

_CONFIG = config_flag.define(None, "What to simulate.")
flags.mark_flag_as_required(_CONFIG)
_WORKDIR = shared_flags.define_workdir("Where everything is written.")
_TRACE = flags.DEFINE_string("trace", None, "File with the preemptions; else they are generated.")
_FORMAT = figure_flags.define()
flags.adopt_module_key_flags(sweep_flags)


@sweep_flags.ending
def main() -> None:
  """Runs the experiment of the config."""
  config = _CONFIG.value
  name = config.get("experiment")
  if name not in _EXPERIMENTS:
    raise ValueError(base.suggest(str(name), _EXPERIMENTS, what="experiment"))
  if name == "compare":
    given = flag_checks.given_keys(sys.argv[1:])
    flag_checks.refuse(*unused.find_unused(config, trace=_TRACE.value, given=given))
  if not config.get("plots", True):
    flag_checks.check_unused([_FORMAT], "with config.plots=False")
  where = sweep_flags.read(_WORKDIR.value)
  workdir = pathlib.Path(_WORKDIR.value)
  _EXPERIMENTS[name](
      config, workdir=workdir, trace=_TRACE.value, formats=_FORMAT.value, where=where
  )
  # Last, as experiments check their options.
  provenance.write(
      workdir,
      command=["bamboo", "simulate", *sys.argv[1:]],
      config=config.to_json(),
      trace=_TRACE.value,
  )
  where.clear()


if __name__ == "__main__":
  cli.run(main, own_keys=True)
