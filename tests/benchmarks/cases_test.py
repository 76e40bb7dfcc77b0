"""Which benchmark runs, and which configs it takes."""

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.benchmarks import cases
from bamboo_jax.configs import (
    bench_executors,
    bench_memory,
    bench_peer,
    bench_redundancy,
    bench_shape,
)

_CONFIGS = {
    "rivals": bench_peer,
    "redundancy": bench_redundancy,
    "executors": bench_executors,
    "memory": bench_memory,
    "shape": bench_shape,
}


def read(case, **changes):
  config = config_lib.Config.read(_CONFIGS[case].get_config())
  return config.changed({k.replace("__", "."): v for k, v in changes.items()})


class CasesTest(parameterized.TestCase):

  @parameterized.parameters(
      (None, [], "rivals"),
      (None, ["bench_memory"], "memory"),
      (None, ["configs/bench_redundancy.py:paced"], "redundancy"),
      ("memory", ["mine.py"], "memory"),
      ("rivals", ["bench_memory"], "rivals"),
  )
  def test_find_case(self, given, paths, want):
    self.assertEqual(cases.find_case(given, paths), want)

  @parameterized.parameters(
      (None, ["mine.py"], "--config=mine.py: one of rivals, .*, got None."),
      ("memroy", [], "--config=bench_peer: one of rivals, .*, got memroy."),
  )
  def test_no_case(self, given, paths, message):
    with self.assertRaisesRegex(ValueError, f"^--case must say .*{message}$"):
      cases.find_case(given, paths)

  @parameterized.parameters(*cases.CASES)
  def test_packaged_config(self, case):
    cases.check_config(read(case), case)

  @parameterized.parameters(
      ("rivals", {"plan__memory_limit_gib": 16.0}),
      ("memory", {"plan__memory_limit_gib": None}),
      ("memory", {"pipeline__executor": "spmd"}),
  )
  def test_content_does_not_choose(self, case, changes):
    cases.check_config(read(case, **changes), case)

  @parameterized.parameters(
      ("rivals", {"redundancy__mode": "lazy"}, "redundancy.mode='none'"),
      ("rivals", {"pipeline__executor": "spmd"}, "executor='rows'"),
      ("redundancy", {"redundancy__mode": "none"}, "mode than 'none'"),
      ("redundancy", {"pipeline__executor": "spmd"}, "executor='rows'"),
      ("executors", {"pipeline__executor": "rows"}, "executor='spmd'"),
      ("executors", {"redundancy__mode": "none"}, "mode than 'none'"),
      ("shape", {"pipeline__num_pipelines": 1}, "num_pipelines from 2"),
      ("redundancy", {"pipeline__num_stages": 3}, "2 stages .* got .*=3"),
  )
  def test_another_config(self, case, changes, message):
    config = read(case, **changes)
    with self.assertRaisesRegex(ValueError, f"'{case}' .*{message}"):
      cases.check_config(config, case)
