"""Models of text, with tuples or with statistics: same bits in several layouts, and dying.

Compiling them takes most of the time. BERT's mask is read by every stage; GPT-2's weights are cast
once for a step.
"""

import importlib
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.models import zoo
from bamboo_jax.runtime.phases import update
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import links as links_lib
from bamboo_jax.training.setup import accept, optimizers
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
_OPTIONS = {
    "bert": {"num_masked": 3, "dropout_rate": 0.1},
    "gpt2": {"dtype": "bfloat16", "dropout_rate": 0.1},
    "qwen": {"num_kv_heads": 1, "head_width": 8, "hidden_width": 24},
}
_OPTIONS["qwen, lora"] = {
    **{"lora_rank": 2, "lora_targets": "q_proj,down_proj", "dtype": "bfloat16"},
    **_OPTIONS["qwen"],
}
_OPTIONS["gpt2, lora"] = {
    **{"lora_rank": 2, "lora_targets": "c_attn,c_proj,c_fc"},
    **_OPTIONS["gpt2"],
}


def make_config(name):
  options = {
      "variant": "tiny",
      "num_blocks": 2,
      "width": 16,
      "num_heads": 2,
      "vocab_size": 20,
      "sequence_length": 12,
      **_OPTIONS[name],
  }
  return small.make_config(3, 2, 1, model__name=name.split(",")[0], model__options=options)


class ModelsTest(parameterized.TestCase):

  @samples.only_all  # Compiling takes half a minute; `tests/mlp_bn.py` has statistics in small.
  @parameterized.named_parameters(*_MODELS)
  def test_same_bits(self, configs, options):
    config = configs.get_config("tiny")
    config.model.options.update(options)
    config.pipeline.num_pipelines = config.pipeline.num_stages = 2
    config.pipeline.num_microbatches, config.pipeline.microbatch_size = 3, 2
    config.evaluate.every_steps = 0
    config = accept.accept(config)
    for num_pipelines, settings, more, faults in _LAYOUTS:
      sizes = layouts_lib.split_batch(config, num_pipelines)
      layout = layouts_lib.SweepLayout(tuple({**sizes, **settings}.items()), number=0, **more)
      # Compares with one process.
      table.make_trials(config, layout).run(small.make_case(faults))
    trials = trials_lib.Trials(config, like=table.prepare(config)[0])
    for text in ("1,0/0,3", "1,0/1,2", "1,1/1,reduce", "1,0/0,apply"):
      self.assertNotEmpty(trials.run(small.make_case(text)).rungs, msg=text)

  @parameterized.parameters(*zip(samples.draw(sorted(_OPTIONS), 1)))
  def test_deaths(self, name):
    """If `refresh` is "state", replicas get parameters, not gradients; but no frozen ones."""
    config, task = make_config(name), None
    refresh_all, receive, received = update.refresh, links_lib.Links.receive, []

    def refresh_once(engine, scale):
      received.append(0)
      refresh_all(engine, scale)

    def count(links, channel, *args):
      value = receive(links, channel, *args)
      if channel.kind == "refresh":
        received[-1] += spec_lib.nbytes(value)
      return value

    self.enterContext(mock.patch.object(update, "refresh", refresh_once))
    self.enterContext(mock.patch.object(links_lib.Links, "receive", count))
    for refresh in ("gradient", "state")[: 1 + (name == "qwen, lora")]:
      config.redundancy.refresh = refresh
      trials = trials_lib.Trials(config, like=task)
      task = trials.task
      for text in ("1,0/0,5", "1,0/1,3", "1,0/2,reduce"):
        with self.subTest(f"{refresh}: {text}"):
          self.assertEqual(trials.run(small.make_case(text)).rungs, ("shadow",))
    if "lora" in name:
      self.assertLess(3 * max(received), spec_lib.nbytes(task.whole.state))

  @parameterized.parameters("bert", "gpt2", "llama", "qwen")
  def test_configs(self, name):
    make = importlib.import_module(f"configs.{name}").get_config
    self.assertIn(make().model.options.variant, zoo.VARIANTS[name])
    for variant in zoo.VARIANTS[name]:
      config = make(variant)
      optimizers.make_optimizer(accept.accept(config).optimizer, 0.1)
      self.assertEqual(config.model.name, name)
      zoo.make_model(config.model.name, **config.model.options)
      if variant != "tiny":
        pipeline = config.pipeline
        self.assertEqual((pipeline.num_pipelines, pipeline.num_stages), (4, 8))
