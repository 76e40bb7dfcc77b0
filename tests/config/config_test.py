"""Sections of options: what they take, what they refuse, how they change."""

import json

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
      ({"model.prng": "rgb"}, "config.model.prng 'rgb'; did you mean 'rbg'"),
      ({"pipeline.executor": "row"}, "config.pipeline.executor 'row'; did you mean 'rows'"),
      ({"pipeline.layout": "dept"}, "config.pipeline.layout 'dept'; did you mean 'depth'"),
      ({"pipeline.schedule": "1f1"}, "config.pipeline.schedule '1f1'; did you mean '1f1b'"),
      ({"pipeline.remat": "mlp=dot"}, "config.pipeline.remat 'dot'; did you mean 'dots'"),
      ({"pipeline.remat": "none"}, "remat 'none'. Allowed: dots, full, inputs"),
      ({"node.mesh.data": 2}, "mesh.data=2 must divide .*microbatch_size=1"),
      ({"redundancy.mode": "eagre"}, "config.redundancy.mode 'eagre'; did you mean 'eager'"),
      ({"redundancy.refresh": "grad"}, "refresh 'grad'.*Allowed: gradient, state"),
      ({"redundancy.slots": "hots"}, "slots 'hots'; did you mean 'host'"),
      (
          {"redundancy.mode": "lazy", "pipeline.num_stages": 1},
          "redundancy.mode='lazy' needs at least 2 stages, .* got config.pipeline.num_stages=1",
      ),
      ({"recovery.method": "rule"}, "config.recovery.method 'rule'; did you mean 'rules'"),
      ({"recovery.horizon_secs": float("inf")}, "above 0, got inf"),
      ({"recovery.horizon_secs": float("nan")}, "above 0, got nan"),
      ({"recovery.max_doubled": 5.0}, "max_doubled must be at least 0 and at most 2, got 5.0"),
      ({"recovery.slow": "drop"}, "config.recovery.slow 'drop'.*Allowed: remove"),
      ({"recovery.slow": "deal"}, "^config.recovery.slow='deal' is gone; use 'remove', .*'.$"),
      ({"recovery.slow": "layers"}, "slow='layers' is gone; use 'remove', .*'report'.$"),
      ({"optimizer.decay": "matrix"}, "config.optimizer.decay 'matrix'; did you mean 'matrices'"),
      ({"optimizer.on_nonfinite": "ski"}, "on_nonfinite 'ski'; did you mean 'skip'"),
      ({"cluster.stopped_secs": 0.1}, r"at least 2 heartbeat_secs \(0.2\), got 0.1"),
      ({"cluster.least_silence_secs": 0.1}, "least_silence_secs must be at least 2 heartbeat_secs"),
      ({"cluster.most_silence_secs": 1.0}, r"at least least_silence_secs \(3\), got 1.0"),
      ({"cluster.no_progress_secs": float("nan")}, "no_progress_secs must be above 0, got nan"),
      (
          {"plan.region_mbits": 200.0},
          "region_latency_ms and config.plan.region_mbits must both .*got None and 200.0",
      ),
      ({"cost.market": "sport"}, "config.cost.market 'sport'; did you mean 'spot'"),
      ({"cost.region": "here"}, "config.cost.region='here' has no effect without .*instance"),
      ({"cost.prices": "a.csv"}, "config.cost.prices='a.csv' has no effect without"),
      ({"metrics.profile_steps": "6:3"}, "such as 3:6, got '6:3'"),
      ({"metrics.figure_format": "png,gif"}, "png, pdf, svg.*got 'png,gif'"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      config_lib.Config().changed(changes)

  @parameterized.parameters(
      (-1, "at least 0", "num_steps", "recovery.num_failures", "metrics.trace_steps"),
      (-1, "at least 0", "redundancy.spares", "redundancy.check_every_steps"),
      (-1, "at least 0", "optimizer.most_skipped_steps", "evaluate.every_steps"),
      (-1, "at least 0", "checkpoint.every_steps"),
      (0, "at least 1", "pipeline.segment_ticks", "pipeline.num_pipelines", "pipeline.num_stages"),
      (0, "at least 1", "pipeline.num_microbatches", "pipeline.microbatch_size"),
      (0, "at least 1", "pipeline.num_shares", "node.mesh.tensor", "evaluate.num_microbatches"),
      (0, "at least 1", "checkpoint.keep"),
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

  @parameterized.parameters(
      ("pipeline.num_stages", 2.5, "num_stages must be int, got 2.5, float"),
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

  def test_json_names_the_users_own_objects(self):
    options = {"model.options": {"width": 3, "make": _leaves}}
    plain = config_lib.Config().changed(options).to_json()
    self.assertEqual(plain["model"]["options"]["make"], f"{__name__}._leaves")
    self.assertEqual(json.loads(json.dumps(plain)), plain)

  def test_help_texts(self):
    for option in config_lib.list_options(config_lib.Config):
      self.assertRegex(option.help, r"^\S.*[.]$", msg=option.name)
