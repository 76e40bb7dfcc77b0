"""Sections of options: what they take, what they refuse, how they change."""

import json
import re

from absl.testing import parameterized
from ml_collections import config_dict

from bamboo_jax import config as config_lib
from configs import default
from tests import tiny


def _leaves(values, prefix=""):
  for key, value in values.items():
    if isinstance(value, dict):
      yield from _leaves(value, f"{prefix}{key}.")
    else:
      yield f"{prefix}{key}", value


class ConfigTest(parameterized.TestCase):

  def test_the_default_config_has_all_options(self):
    given = default.get_config()
    self.assertEqual(config_lib.Config.read(given), config_lib.Config())
    self.assertEqual(given.to_dict(), config_lib.Config().to_dict())

  def test_what_may_be_none_is_a_reference(self):
    def find(section, own):
      for key, value in section.items(preserve_field_references=True):
        if isinstance(inner := getattr(own, key), config_lib.Section):
          find(value, inner)
          continue
        kind = own.find_kind(key)
        is_reference = isinstance(value, config_dict.FieldReference)
        self.assertEqual(is_reference, config_lib.without_none(kind) is not kind)

    find(default.get_config(), config_lib.Config())

  def test_changes_leave_the_original(self):
    config = config_lib.Config()
    changes = {"num_steps": 3, "node.mesh.data": 2, "node.mesh.tensor": 4}
    changes |= {"pipeline.microbatch_size": 2, "model.options.vocab_size": 5}
    changed = config.changed(changes)
    before, after = dict(_leaves(config.to_dict())), dict(_leaves(changed.to_dict()))
    self.assertEqual({k: v for k, v in after.items() if v != before[k]}, changes)
    self.assertEqual(config, config_lib.Config())

  @parameterized.parameters(
      (-1, "at least 0", "num_steps", "recovery.num_failures", "metrics.trace_steps"),
      (-1, "at least 0", "redundancy.spares", "redundancy.check_every_steps"),
      (-1, "at least 0", "optimizer.most_skipped_steps", "evaluate.every_steps"),
      (-1, "at least 0", "checkpoint.every_steps"),
      (0, "at least 1", "pipeline.segment_ticks", "pipeline.num_pipelines", "pipeline.num_stages"),
      (0, "at least 1", "pipeline.num_microbatches", "pipeline.microbatch_size"),
      (0, "at least 1", "pipeline.num_shares", "node.mesh.tensor", "evaluate.num_microbatches"),
      (0, "at least 1", "checkpoint.keep"),
      (-1, "at least 0 and at most 9223372036854775807", "seed"),
      (2**63, "at least 0 and at most 9223372036854775807", "seed"),
      (-0.1, "at least 0", "redundancy.margin", "redundancy.budget", "optimizer.learning_rate"),
      (-0.1, "at least 0", "plan.region_latency_ms"),
      (0.0, "above 0", "recovery.horizon_secs", "plan.memory_limit_gib", "optimizer.clip_norm"),
      (0.0, "above 0", "cluster.start_silence_secs", "cluster.gather_secs"),
      (0.0, "above 0", "cluster.heartbeat_secs", "plan.region_mbits"),
      (0.5, "at least 1", "cluster.silence_factor"),
  )
  def test_limits(self, value, limit, *names):
    for name in names:
      message = rf"^config\.{name} must be {limit}, got {value}\.$"
      with self.subTest(name), self.assertRaisesRegex(ValueError, message):
        config_lib.Config().changed({name: value})
      if isinstance(value, int) and (least := re.match(r"at least (\d+)", limit)):
        config_lib.Config().changed({name: int(least[1])})

  @parameterized.parameters(
      ("pipeline.num_stages", 2.5, "num_stages must be int, got 2.5, float"),
      ("seed", True, "config.seed must be int, got True, bool"),
      ("model.name", None, "^config.model.name must be str, got None"),
      ("modle", {}, "'modle'; did you mean 'model'"),
      ("plugins", "mine", "config.plugins must be tuple, got 'mine', str"),
      ("plugins", (None,), "config.plugins must have a value, got .*None"),
      ("plugins", (3,), "config.plugins must have str entries, got 3, int"),
      ("study.depths", ("a",), "config.study.depths must have float entries, got 'a', str"),
      ("study.trace.nodes_per_zone", [3, 2.5], "must have int entries, got 2.5, float"),
      ("study.trace.bulk_sizes", (("a", 1.0),), "bulk_sizes must be pairs .*got .*'a'"),
      ("study.trace.bulk_sizes", ((1, "a"),), "bulk_sizes must be pairs .*got .*'a'"),
      ("model.options", 3, "config.model.options must be a dict, got 3"),
      ("node.mesh", 3, "config.node.mesh must be a dict, got 3"),
      ("recovery.fold", 1, "config.recovery.fold must be bool, got 1, int"),
      ("plan.profile", 1, "config.plan.profile must be str, got 1, int"),
  )
  def test_refuses_types(self, name, value, message):
    given = tiny.change(config_lib.Config().to_dict(), **{name.replace(".", "__"): value})
    with self.assertRaisesRegex(ValueError, message):
      config_lib.Config.read(given)

  def test_a_key_that_is_missing(self):
    with self.assertRaisesRegex(ValueError, "config.name is missing; a config"):
      config_lib.Config.read({"num_steps": 3})

  def test_json_names_the_users_own_objects(self):
    options = {"model.options": {"width": 3, "make": _leaves}}
    plain = config_lib.Config().changed(options).to_json()
    self.assertEqual(plain["model"]["options"]["make"], f"{__name__}._leaves")
    self.assertEqual(json.loads(json.dumps(plain)), plain)

  def test_help_texts(self):
    """And what is said of options that are gone."""
    texts = {o.name: o.help for o in config_lib.list_options(config_lib.Config)}
    gone = {name.removeprefix("config."): hint for name, hint in config_lib.GONE.items()}
    self.assertEmpty(texts.keys() & gone.keys())
    for name, text in (texts | gone).items():
      self.assertRegex(text, r"^\S.*[.]$", msg=name)
