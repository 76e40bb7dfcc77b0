"""Keys that have no effect are refused, each with its reason."""

import json

from absl.testing import parameterized

from bamboo_jax.experiments import unused
from configs.sim import compare as compare_config


class UnusedTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("sweep", {}, "a.csv", ["sweep.values", "sweep.num_seeds"], "generated"),
      ("generated", {}, "a.csv", ["trace.hours"], "which has the preemptions"),
      ("scale", {}, None, ["trace_file.time_scale"], "without --trace"),
      (
          "seeds",
          {"sweep.field": "durations.boot_secs"},
          "a.csv",
          ["sweep.num_seeds"],
          "which is one trace",
      ),
      (
          "no_values",
          {"sweep.values": ()},
          None,
          ["sweep.field", "sweep.num_seeds"],
          "without config.sweep.values",
      ),
      ("table", {}, None, ["workload.table.where.model"], "costs=transformer"),
      ("link", {}, None, ["workload.link_bytes_per_sec"], "costs=transformer"),
      (
          "transformer",
          {"workload.costs": "profile"},
          None,
          ["workload.transformer.num_layers"],
          "costs=profile",
      ),
      (
          "data_sheet",
          {"instance": "p4d.24xlarge"},
          None,
          ["workload.gpus_per_node", "workload.transformer.flops_per_sec"],
          "p4d.24xlarge, whose data sheet",
      ),
  )
  def test_refuses(self, changes, trace, keys, when):
    found, reason = self._find(changes, trace, ["seed", *keys, "instance"])
    self.assertEqual(found, [f"--config.{key}" for key in keys])
    self.assertIn(when, reason)

  @parameterized.named_parameters(
      ("sweep", {}, None, ["sweep.values", "sweep.num_seeds", "trace.hours"]),
      ("file", {}, "a.csv", ["trace_file.num_nodes", "seed"]),
      ("no_sweep", {"sweep.values": ()}, "a.csv", ["sweep.values"]),
      ("swept", {"sweep.field": "durations.boot_secs"}, "a.csv", ["sweep.field", "sweep.values"]),
      (
          "own_speeds",
          {"instance": "p4d.24xlarge", "workload.of_instance": False},
          None,
          ["workload.gpus_per_node", "workload.transformer.flops_per_sec"],
      ),
      ("all_costs", {"sweep.field": "workload.costs"}, None, ["workload.table.path"]),
      ("similar", {}, "a.csv", ["traces", "trace_file.time_scale"]),
  )
  def test_takes(self, changes, trace, keys):
    self.assertEqual(self._find(changes, trace, keys), ([], ""))

  def _find(self, changes, trace, keys):
    config = compare_config.get_config()
    config.update_from_flattened_dict(changes)
    plain = json.loads(config.to_json())
    return unused.find_unused(plain, trace=trace, given=keys)
