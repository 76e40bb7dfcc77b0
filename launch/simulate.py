r"""Simulates training on preemptible nodes; see docs/simulator.md.

bamboo simulate --config=sim/compare --workdir=runs/sim
bamboo simulate --config=sim/compare --workdir=runs/sim \
  --trace=trace.csv

What is simulated is up to the config: its `experiment` is one of those below,
and its other keys are what that experiment takes. Nothing runs on a device.
"""

import pathlib
import sys

from absl import flags

from bamboo_jax import base
from bamboo_jax.experiments import bamboo_bert
from bamboo_jax.experiments import compare
from bamboo_jax.experiments import oobleck
from bamboo_jax.experiments import provenance
from bamboo_jax.launch import cli
from bamboo_jax.launch import config_flag
from bamboo_jax.launch import shared_flags
from bamboo_jax.metrics import plots

# What `config.experiment` may be. Each is called with the config, the folder to
# write to, which is there, and the path of the trace or None.
_EXPERIMENTS = {
    "bamboo_artifact": bamboo_bert.run,
    "compare": compare.run,
    "oobleck_artifact": oobleck.run,
}

_CONFIG = config_flag.define(None, "What to simulate.")
flags.mark_flag_as_required(_CONFIG)
_WORKDIR = shared_flags.define_workdir("Where everything is written.")
_TRACE = flags.DEFINE_string(
    "trace", None, "File with the preemptions; else they are generated."
)


def main() -> None:
  """Runs the experiment of the config."""
  config = _CONFIG.value
  name = config.get("experiment")
  if name not in _EXPERIMENTS:
    raise ValueError(base.suggest(str(name), _EXPERIMENTS, what="experiment"))
  if config.get("plots", True):
    plots.check()
  workdir = pathlib.Path(_WORKDIR.value)
  workdir.mkdir(parents=True, exist_ok=True)
  provenance.write(
      workdir,
      command=["bamboo", "simulate", *sys.argv[1:]],
      config=config.to_json(),
      trace=_TRACE.value,
  )
  _EXPERIMENTS[name](config, workdir=workdir, trace=_TRACE.value)


if __name__ == "__main__":
  cli.run(main, own_keys=True)
