"""Models with statistics and with tuples: same bits in any layout, and dying.

Compiling their programs takes most of the time.
"""

from absl.testing import parameterized
import jax

from bamboo_jax.faults import faults as faults_lib
from configs import gnmt
from configs import resnet
from tests.fault_sweep import cases
from tests.fault_sweep import layouts as layouts_lib
from tests.fault_sweep import trials as trials_lib

_CONFIGS = {"gnmt": gnmt, "resnet": resnet}
_LAYOUTS = (
    layouts_lib.Layout(1, 1),
    layouts_lib.Layout(1, 3, link="ppermute", costs_seed=1),
    layouts_lib.Layout(
        *(3, 2, "1f1b", "auto", "eager", 1, 3),
        death=faults_lib.Fault(1, "1/0", 7),
    ),
)
_DEATHS = (("0/0", 3), ("0/1", 2), ("1/1", "reduce"), ("0/0", "apply"))


def make_config(name):
  """Returns the config of a run of two pipelines of two stages."""
  config = _CONFIGS[name].get_config("tiny")
  options = {"num_classes": 3, "depths": (1, 1), "width": 4, "image_size": 8}
  if name == "gnmt":
    options = {"width": 8, "sequence_length": 12, "vocab_size": 256}
  config.model.options.update(options)
  config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 2
  config.pipeline.microbatch_size = 2
  config.evaluate.every_steps = 0
  return config


class ModelsTest(parameterized.TestCase):

  @parameterized.parameters([(name,) for name in _CONFIGS])
  def test_same_bits(self, name):
    jax.devices()  # There are 8.
    config = make_config(name)
    layouts = layouts_lib.Layouts(config)
    states = {str(layout): layouts.run(layout) for layout in _LAYOUTS}
    self.assertLen(set(states.values()), 1, msg=str(states))
    trials = trials_lib.Trials(
        make_config(name), cache=layouts.cache, whole=layouts.whole
    )
    for place, at in _DEATHS:
      fault = faults_lib.Fault(cases.FIRST_STEP, place, at)
      self.assertNotEmpty(trials.run(cases.Case((fault,))).rungs, msg=fault)
