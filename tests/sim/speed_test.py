"""Steps of a small model, predicted by the planners of real runs; and throughput tables."""

import dataclasses
import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.plan import partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.recovery import placement as placement_lib
from bamboo_jax.schedule import failover
from bamboo_jax.sim import speed
from tests import profiles

_PROFILE = profiles.make_transformer(microbatch_size=2)
_PARTITION = partition_lib.split_layers(_PROFILE.layers, 4)


def make_speed(mode="none", reroute="shares", **communication):
  return speed.ProfileSpeed(
      _PROFILE,
      num_microbatches=12,
      microbatch_size=2,
      redundant=config_lib.RedundancySection(mode),
      reroute=reroute,
      communication=speed.Communication(config_lib.StudySection(**communication)),
  )


def make_pipelines(count, *, replicas=True):
  return placement_lib.make_pipelines([_PARTITION] * count, range(100, 100 + 4 * count), replicas)


def lose(pipeline, node):
  roles, _ = failover.fail_over(pipeline.roles, {node})
  return pipelines_lib.Pipeline(pipeline.partition, roles)


def vacate(pipeline, *stages):
  return pipelines_lib.Pipeline(pipeline.partition, pipeline.roles, frozenset(stages))


class StepTest(parameterized.TestCase):

  def test_a_whole_step(self):
    pipelines = make_pipelines(3, replicas=False)
    cost = make_speed().step(pipelines, drops=False)
    time = make_speed().predictor.predict(pipelines)
    self.assertAlmostEqual(cost.secs, time.total_ms / 1e3)
    self.assertEqual((cost.num_samples, cost.num_dropped), (24, 0))
    self.assertEqual(cost.shares.redundant, 0.0)
    passes_ms = 12 * sum(c.forward_ms + c.backward_ms for c in _PROFILE.layers)
    joint_ms = time.norm_ms + time.update_ms
    self.assertAlmostEqual(cost.shares.useful, (passes_ms + 12 * joint_ms) / (12 * time.total_ms))

  @parameterized.parameters("ring", "ordered", "tree")
  def test_sums_are_communication(self, reduction):
    pipelines = make_pipelines(3, replicas=False)
    speeds = make_speed(reduction=reduction)
    cost = speeds.step(pipelines, drops=False)
    sums_ms = speeds.predictor.sum_ms(_PARTITION, num_pipelines=3)
    self.assertLen(sums_ms, 4)
    self.assertAlmostEqual(cost.shares.communication * 12 * cost.secs * 1e3, 3 * sum(sums_ms))
    alone = speeds.step(pipelines[:1], drops=False)
    self.assertEqual(alone.shares.communication, 0.0)

  def test_redundancy_shows(self):
    pipelines = make_pipelines(2)
    shares = {
        mode: make_speed(mode).step(pipelines, drops=False).shares.redundant
        for mode in ("lazy", "bubble", "eager")
    }
    self.assertLess(0.0, shares["lazy"])  # Replicas are refreshed.
    self.assertLess(shares["lazy"], shares["bubble"])

  def test_nodes_with_two_stages_are_slower(self):
    first, second = make_pipelines(2)
    whole = make_speed("lazy").step([first, second], drops=False)
    slow = make_speed("lazy").step([lose(first, 101), second], drops=False)
    self.assertLess(whole.secs, slow.secs)
    self.assertLess(slow.secs, 2 * whole.secs)

  def test_peers_share_a_vacant_stage(self):
    speeds = make_speed()
    first, second, third = pipelines = make_pipelines(3, replicas=False)
    lacking = [vacate(first, 1), second, third]
    secs = [
        speeds.step(some, drops=False).secs
        for some in (
            pipelines,
            lacking,
            [vacate(first, 1, 2), second, third],
            # Two others still share each stage.
            [vacate(first, 1), vacate(second, 2), third],
            [vacate(first, 1), vacate(second, 1), third],
        )
    ]
    self.assertLess(secs[0], secs[1])
    self.assertAlmostEqual(secs[1], secs[2])
    self.assertAlmostEqual(secs[1], secs[3])
    self.assertLess(secs[3], secs[4])
    for drops, samples in ((False, (24, 0)), (True, (16, 8))):
      cost = speeds.step(lacking, drops=drops)
      self.assertEqual((cost.num_samples, cost.num_dropped), samples)

  def test_numbers_of_nodes_do_not_matter(self):
    speeds = make_speed("lazy")
    first, second = make_pipelines(2)
    other = first.renumbered({100: 7, 101: 3, 102: 5, 103: 1})
    cost = speeds.step([first, second], drops=False)
    self.assertEqual(speeds.step([other, second], drops=False), cost)


class FinishTest(parameterized.TestCase):

  def test_shadows(self):
    first, second = before = make_pipelines(2)
    speeds = make_speed("bubble")
    step_secs = speeds.step(before, drops=False).secs
    one = speeds.finish("shadow", before, [lose(first, 101), second])
    self.assertBetween(one.secs, 0.05 * step_secs, step_secs)
    self.assertEqual(one.left_share, 0.0)
    both = [lose(first, 101), lose(second, 105)]
    self.assertEqual(speeds.finish("shadow", before, both), one)
    two = [lose(lose(first, 101), 103), second]
    self.assertGreater(speeds.finish("shadow", before, two).secs, one.secs)

  def test_what_is_owed_is_dealt_by_share(self):
    first, second = before = make_pipelines(2)
    after = [lose(first, 101), second]
    alone, dealt = (
        make_speed("bubble", reroute=reroute).finish("shadow", before, after)
        for reroute in ("stage", "shares")
    )
    self.assertBetween(dealt.secs, 0.2 * alone.secs, 0.6 * alone.secs)

  def test_peers(self):
    three, two = (make_pipelines(n, replicas=False) for n in (3, 2))
    speeds = make_speed()
    for before, after, num_owed in (
        # Each of two others computes 2 of the 4 microbatches of a stage.
        (three, [vacate(three[0], 1), *three[1:]], 2),
        # 12 microbatches in all; those of one pipeline go to the others.
        (three, three[1:], 2),
        (two, two[1:], 6),
    ):
      delay = speeds.finish("reroute", before, after)
      owed_ms = speeds.predictor.compute_ms(_PARTITION, num_owed)
      self.assertAlmostEqual(delay.secs, owed_ms / 1e3)


_SUMMED = profiles.make_profile(
    [profiles.make_layer(name, backward_ms=3.0, parameter_bytes=100) for name in "abcd"],
    link_bytes_per_ms=100.0,
    reduce_latency_ms=0.25,
    reduce_bytes_per_ms=100.0,
    measured=False,
)
_STAGES = (_SUMMED.layers[:2], _SUMMED.layers[2:])


def _make(reduction="ring", overlap="none", duplex="full"):
  study = config_lib.StudySection(reduction=reduction, overlap=overlap, duplex=duplex)
  return speed.Communication(study)


class ReduceTest(parameterized.TestCase):

  @parameterized.parameters(
      # 800 bytes are 8 ms of the link. Pipelines, shares, rounds and bytes.
      ("ring", 4, 4, 6 * 0.25 + 2 * 3 / 4 * 8),
      ("ordered", 4, 4, 0.25 + 2 * 3 / 4 * 8),
      ("ordered", 2, 4, 0.25 + 3 * 1 / 2 * 8),
      ("ordered", 1, 2, 0.25 + 8),
      ("tree", 5, 5, 6 * 0.25 + 2 * 8),
      ("ring", 1, 1, 0.0),
      ("ring", 4, 4, 6 * 0.25 + 2 * (2 * 3 / 4 * 8), "half"),
  )
  def test_time(self, reduction, num_pipelines, num_shares, expected, duplex="full"):
    counts = dict(num_pipelines=num_pipelines, num_shares=num_shares)
    got = _make(reduction, duplex=duplex).reduce_ms(_SUMMED, 800, **counts)
    self.assertAlmostEqual(got, expected)

  def test_frozen_parameters_are_not_summed(self):
    frozen = [dataclasses.replace(layer, frozen_bytes=100) for layer in _STAGES[0]]
    got = _make().sum_ms(_SUMMED, frozen, num_pipelines=4, num_shares=4)
    self.assertEqual(got, 6 * 0.25)


class OverlapTest(parameterized.TestCase):

  @parameterized.parameters(
      # Two pipelines: each stage sends 200 bytes in two rounds, 2.5 ms. When
      # the second stage is done, the first has 6 ms to go.
      ("none", (2.5, 2.5), 2.5),
      ("drain", (2.5, 2.5), 2.5),
      # The sum of the last layer, 1.5 ms, is done before the first layer is.
      ("backward", (1.5, 1.5), 1.5),
  )
  def test_two_stages(self, overlap, sums, exposed):
    communication = _make(overlap=overlap)
    counts = dict(num_pipelines=2, num_shares=2)
    sum_ms = tuple(communication.sum_ms(_SUMMED, stage, **counts) for stage in _STAGES)
    self.assertEqual(sum_ms, sums)
    self.assertEqual(communication.exposed_ms(_STAGES, sum_ms), exposed)

  @parameterized.parameters(("none", 8.0), ("drain", 3.0))
  def test_late_stages_hide_more(self, overlap, exposed):
    got = _make(overlap=overlap).exposed_ms(_STAGES, (3.0, 8.0))
    self.assertEqual(got, exposed)

  @parameterized.parameters(("half", 5.0), ("full", 3.0))
  def test_both_directions(self, duplex, expected):
    self.assertEqual(_make(duplex=duplex).exchange_ms(3.0, 2.0), expected)


_TEXT = """model,nodes,fast,slow
a,8,80.0,40.0
a,7,70.0,OOM
b,8,800.0,1.0
"""


def section(text, **options):
  path = pathlib.Path(tempfile.mkdtemp(), "table.csv")
  path.write_text(text)
  return config_lib.TableSection(file=str(path), **options)


def make_even():
  partitions = speed.TableShapes(4, True).partitions(12)
  return placement_lib.make_pipelines(partitions, range(12), True)


class ReadTest(parameterized.TestCase):

  @parameterized.parameters("", "\ufeff")
  def test_column_and_lines(self, mark):
    table = speed.read_table(
        section(mark + _TEXT, column="fast", samples_per_step=160.0, rows="model=a")
    )
    self.assertEqual(table.samples_per_sec, {8: 80.0, 7: 70.0})
    self.assertEqual(table.step_secs(8), 2.0)

  def test_best_of_pipelines_and_stages(self):
    text = "dp,pp,fast\n2,2,40\n1,4,50\n1,3,20\n3,2,45\n1,7,60\n"
    table = speed.read_table(section(text, column="fast"))
    want = {3: 20.0, 4: 50.0, 5: 50.0, 6: 50.0, 7: 60.0}
    self.assertEqual(table.samples_per_sec, want)

  def test_what_did_not_run_is_left_out(self):
    table = speed.read_table(section(_TEXT, column="slow", samples_per_step=160.0, rows="model=a"))
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
      speed.read_table(section(text, column=column, rows="model=a"))


class TableSpeedTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    rates = {n: float(n) for n in range(4, 13)}
    self.speed = speed.Table("table", 96.0, rates)

  def test_step(self):
    first, *rest = make_even()
    doubled = lose(first, 1)  # One node has two stages.
    vacant = vacate(first, 1)
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
    first, *rest = before = make_even()
    after = [lose(first, 1), *rest]
    delay = self.speed.finish("shadow", before, after)
    self.assertEqual((delay.secs, delay.left_share), (0.0, 0.5))
