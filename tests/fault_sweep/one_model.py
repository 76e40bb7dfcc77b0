"""Any model: same bits in several layouts, and dying."""

import jax

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.testing.fault_sweep import cases, layouts as layouts_lib, trials as trials_lib

_LAYOUTS = (
    layouts_lib.SweepLayout(1, 1),
    layouts_lib.SweepLayout(1, 3, costs_seed=1),
    layouts_lib.SweepLayout(
        *(3, 2, (("redundancy.mode", "eager"), ("redundancy.spares", 1))),
        costs_seed=3,
        num_devices=4,  # Each needs the programs.
        faults=(faults_lib.Fault(1, "1/0", 7),),
    ),
)
_DEATHS = (("0/0", 3), ("0/1", 2), ("1/1", "reduce"), ("0/0", "apply"))


def check(test, make_config):
  """Fails unless states of all layouts are one, and deaths change nothing."""
  jax.devices()  # There are 8.
  layouts = layouts_lib.Layouts(_shrink(make_config()))
  states = {str(layout): layouts.run(layout) for layout in _LAYOUTS}
  test.assertLen(set(states.values()), 1, msg=str(states))
  trials = trials_lib.Trials(_shrink(make_config()), cache=layouts.cache, whole=layouts.whole)
  for place, at in _DEATHS:
    fault = faults_lib.Fault(cases.FIRST_STEP, place, at)
    test.assertNotEmpty(trials.run(cases.Case((fault,))).rungs, msg=fault)


def _shrink(config):
  config.pipeline.num_pipelines = 2
  config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 2
  config.pipeline.microbatch_size = 2
  config.evaluate.every_steps = 0
  return config
