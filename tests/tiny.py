"""A config of a run that takes seconds, for tests: 1 pipeline of 2 stages.

Its data has a known best loss and needs no files.
"""

import functools
import operator

from configs import default


def get_config():
  """Returns the config; see `configs/default.py`."""
  config = default.get_config()
  config.num_steps = 5
  sizes = dict(vocab_size=16, sequence_length=8, num_blocks=2, width=16, num_heads=2)
  config.model.options = dict(variant="tiny", **sizes, dropout_rate=0.1)
  config.data.name = "synthetic"
  config.pipeline.update(num_pipelines=1, num_stages=2, num_microbatches=2, microbatch_size=2)
  config.optimizer.learning_rate = 1e-2
  config.optimizer.schedule_options.update(warmup_steps=3, decay_steps=50)
  config.evaluate.every_steps = 0
  config.checkpoint.every_steps = 2
  config.metrics.plots = False
  return config


def change(config, **changes):
  """Changes values by name: `pipeline__num_stages=4`; returns the config."""
  for path, value in changes.items():
    *sections, key = path.split("__")
    functools.reduce(operator.getitem, sections, config)[key] = value
  return config


def make_config(**changes):
  """Returns the config with changes, see `change`."""
  return change(get_config(), **changes)
