"""Models with tuples or statistics: same bits in several layouts, and dying.

Compiling them takes most of the time.
"""

from absl.testing import parameterized
import jax

from bamboo_jax.training.setup import accept
from bamboo_jax.verify import layouts as layouts_lib, table, trials as trials_lib
from configs import gnmt, resnet
from tests import samples
from tests.verify import small

_LAYOUTS = (
    (1, {"pipeline.num_stages": 3}, {"costs_seed": 1}, ""),
    (
        3,
        {"pipeline.num_stages": 2, "redundancy.mode": "eager", "redundancy.spares": 1},
        {"costs_seed": 3, "num_devices": 4},  # Each needs the programs.
        "1,1/0,7",
    ),
)

_MODELS = (
    ("tuples", gnmt, dict(width=8, sequence_length=12, vocab_size=256)),
    ("statistics", resnet, dict(num_classes=3, depths=(1, 1), width=4, image_size=8)),
)


class ModelsTest(parameterized.TestCase):

  @samples.only_all  # Compiling takes half a minute; `tests/mlp_bn.py` has statistics in small.
  @parameterized.named_parameters(*_MODELS)
  def test_same_bits(self, configs, options):
    config = configs.get_config("tiny")
    config.model.options.update(options)
    config.pipeline.num_pipelines = config.pipeline.num_stages = 2
    config.pipeline.num_microbatches, config.pipeline.microbatch_size = 3, 2
    config.evaluate.every_steps = 0
    jax.devices()  # There are 8.
    config = accept.accept(config)
    for num_pipelines, settings, more, faults in _LAYOUTS:
      sizes = layouts_lib.split_batch(config, num_pipelines)
      layout = layouts_lib.SweepLayout(tuple({**sizes, **settings}.items()), number=0, **more)
      # Compares with one process.
      table.make_trials(config, layout).run(small.make_case(faults))
    trials = trials_lib.Trials(config, like=table.prepare(config)[0])
    for text in ("1,0/0,3", "1,0/1,2", "1,1/1,reduce", "1,0/0,apply"):
      self.assertNotEmpty(trials.run(small.make_case(text)).rungs, msg=text)
