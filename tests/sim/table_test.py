"""Throughput tables, and what is wrong with some."""

import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import placement as placement_lib
from bamboo_jax.schedule import failover
from bamboo_jax.sim import speed as speed_lib

_TEXT = """model,nodes,fast,slow
a,8,80.0,40.0
a,7,70.0,OOM
b,8,800.0,1.0
"""


def section(text, **options):
  path = pathlib.Path(tempfile.mkdtemp(), "table.csv")
  path.write_text(text)
  return config_lib.TableSection(file=str(path), **options)


def make_pipelines(num_nodes, *, num_stages=4):
  partitions = speed_lib.TableShapes(num_stages, True).partitions(num_nodes)
  return placement_lib.make_pipelines(partitions, range(num_nodes), True)


def lose(pipeline, node):
  roles, _ = failover.fail_over(pipeline.roles, {}, {node})
  return pipelines_lib.Pipeline(pipeline.partition, roles)


class ReadTest(parameterized.TestCase):

  def test_column_and_lines(self):
    table = speed_lib.read_table(
        section(_TEXT, column="fast", samples_per_step=160.0, rows="model=a")
    )
    self.assertEqual(table.samples_per_sec, {8: 80.0, 7: 70.0})
    self.assertEqual(table.step_secs(8), 2.0)

  def test_byte_order_mark(self):
    options = dict(column="fast", rows="model=a")
    with_mark, without = (
        speed_lib.read_table(section(text, **options)).samples_per_sec
        for text in ("\ufeff" + _TEXT, _TEXT)
    )
    self.assertEqual(with_mark, without)

  def test_best_of_pipelines_and_stages(self):
    text = "dp,pp,fast\n2,2,40\n1,4,50\n1,3,20\n3,2,45\n1,7,60\n"
    table = speed_lib.read_table(section(text, column="fast"))
    want = {3: 20.0, 4: 50.0, 5: 50.0, 6: 50.0, 7: 60.0}
    self.assertEqual(table.samples_per_sec, want)

  def test_what_did_not_run_is_left_out(self):
    table = speed_lib.read_table(
        section(_TEXT, column="slow", samples_per_step=160.0, rows="model=a")
    )
    with self.assertRaisesRegex(
        ValueError, r"slow, model a\) has no throughput for 7 nodes, only for 8"
    ):
      table.step_secs(7)

  @parameterized.parameters(
      (_TEXT, "line 1: Unknown column 'fats'; did you mean", "fats"),
      (_TEXT + "a,x,1,1", "line 5: nodes and fast must be numbers"),
      (_TEXT + "a", "line 5: nodes and fast must be numbers"),
      (_TEXT + "a,8,1,1", "line 5: 8 nodes occur twice"),
      ("model,nodes,fast\n", "has no throughput"),
      ("model,nodes,fast\na,8,0", "line 2: nodes must be .*, got 8"),
  )
  def test_bad_file(self, text, message, column="fast"):
    with self.assertRaisesRegex(ValueError, message):
      speed_lib.read_table(section(text, column=column, rows="model=a"))


class TableSpeedTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    rates = {n: float(n) for n in range(4, 13)}
    self.speed = speed_lib.Table("table", 96.0, rates)

  def test_step(self):
    first, *rest = make_pipelines(12)
    doubled = lose(first, 1)  # One node has two stages.
    vacant = pipelines_lib.Pipeline(first.partition, first.roles, frozenset({1}))
    for one, drops, *want in (
        (first, False, 8.0, 96.0, 0.0),
        (doubled, False, 12.0, 96.0, 0.0),
        (vacant, False, 12.0, 96.0, 0.0),
        (vacant, True, 8.0, 64.0, 32.0),
    ):
      cost = self.speed.step([one, *rest], drops=drops)
      got = [cost.secs, cost.num_samples, cost.num_dropped]
      self.assertEqual(got, want)

  def test_finishing_a_step(self):
    first, *rest = before = make_pipelines(12)
    after = [lose(first, 1), *rest]
    delay = self.speed.finish("shadow", before, after)
    self.assertEqual((delay.secs, delay.left_share), (0.0, 0.5))
