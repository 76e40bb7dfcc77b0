"""Models of text survive deaths, to the bit; compiling takes the time.

BERT's mask is read by every stage, so a shadow needs the microbatch again.
GPT-2 is in mixed precision: weights are cast once for a step. Llama is Qwen
without norms of queries and keys.
"""

import importlib
import tempfile
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.models import zoo
from bamboo_jax.runtime.phases import update
from bamboo_jax.runtime.stage import programs as programs_lib
from bamboo_jax.training import run as run_lib
from bamboo_jax.training.setup import accept, job as job_lib, optimizers
from bamboo_jax.verify import cases, trials as trials_lib
from configs import sweep_faults
from tests import samples, tiny

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
  config = sweep_faults.get_config()
  config.model.name = name.split(",")[0]
  config.model.options = {
      "variant": "tiny",
      "num_blocks": 2,
      "width": 16,
      "num_heads": 2,
      "vocab_size": 20,
      "sequence_length": 12,
      **_OPTIONS[name],
  }
  config.checkpoint.every_steps = 0
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 3
  config.pipeline.num_microbatches = 2
  return config


class TextModelsTest(parameterized.TestCase):

  @parameterized.parameters(*zip(samples.draw(sorted(_OPTIONS), 1)))
  def test_deaths(self, name):
    """If `refresh` is "state", replicas get parameters, not gradients."""
    config, cache, whole = make_config(name), programs_lib.ProgramCache(), None
    for refresh in ("gradient", "state")[: 1 + (name == "qwen, lora")]:
      config.redundancy.refresh = refresh
      trials = trials_lib.Trials(config, cache=cache, whole=whole)
      whole = trials.whole
      for text in ("1,0/0,5,kill", "1,0/1,3,kill", "1,0/2,reduce,kill"):
        with self.subTest(f"{refresh}: {text}"):
          faults = faults_lib.parse_faults(text, source="test")
          self.assertEqual(trials.run(cases.Case(faults)).rungs, ("shadow",))

  @samples.only_all
  def test_upkeep_of_replicas(self):
    """With LoRA replicas receive less than 1 % of the bytes without it."""
    num_bytes = {"gradient": [], "state": []}
    refresh = update.refresh

    def count(engine, scale):
      received = refresh(engine, scale)
      num_bytes[engine.replicas.refresh].append(received)

    for adapters in ({"lora_rank": 2}, {}):
      config = tiny.make_config(num_steps=1)
      config.redundancy.mode = "lazy"
      config.model.name = "llama"
      config.model.options = {
          **{"variant": "tiny", "num_blocks": 1, "width": 128},
          **{"num_heads": 2, "num_kv_heads": 2, "head_width": 64},
          **{"hidden_width": 512, "vocab_size": 64, "sequence_length": 8},
          **adapters,
      }
      config.checkpoint.every_steps = 0
      prepared = job_lib.take(config)  # Programs of both modes.
      for mode in num_bytes:
        config.redundancy.refresh = mode
        with (
            tempfile.TemporaryDirectory() as workdir,
            mock.patch.object(job_lib, "take", lambda _, p=prepared: p),
            mock.patch.object(update, "refresh", count),
        ):
          run_lib.train_and_evaluate(config, workdir=workdir)
    # A is [128, 2] and B is [2, 128], of two products; of Adam, both moments
    # and counts.
    for mode, factor in ("gradient", 1), ("state", 3):
      adapters, dense = num_bytes[mode]
      self.assertEqual(adapters // 4096, factor)
      self.assertBetween(adapters / dense, 1e-3, 1e-2)

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
