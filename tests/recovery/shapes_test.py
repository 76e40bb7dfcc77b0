"""Pipelines of a number of nodes, and those that follow others."""

import ast
import dataclasses
import itertools

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import (
    partition as partition_lib,
    pipelines as pipelines_lib,
    predictor as predictor_lib,
)
from bamboo_jax.recovery import moves, placement as placement_lib, shapes as shapes_lib
from bamboo_jax.schedule import failover
from bamboo_jax.sim import speed as speed_lib
from tests import layouts, profiles, tables

_TWO = partition_lib.Partition((0, 2, 4))
_THREE = partition_lib.Partition((0, 1, 2, 4))
_FOUR = partition_lib.Partition((0, 1, 2, 3, 4))
_PROFILE = layouts.make_profile(4)


def make_predictor(profile=_PROFILE, **options):
  return predictor_lib.Predictor(profile, num_microbatches=12, **options)


_SLOW_SUMS = make_predictor(
    dataclasses.replace(_PROFILE, reduce_latency_ms=1e6),
    communication=speed_lib.Communication(config_lib.StudySection(reduction="ring")),
)


def make_depth(partition, *, max_pipelines=None, mode="none", **options):
  predictor = make_predictor(redundant=config_lib.RedundancySection(mode))
  return shapes_lib.Templates(
      (partition,), predictor, config_lib.RecoverySection(**options), max_pipelines=max_pipelines
  )


def make_templates(
    method="replanning", *, uses_all=True, num_failures=1, predictor=None, **options
):
  predictor = predictor or make_predictor(**options)
  found = shapes_lib.make_templates(
      predictor.profile.layers, num_failures=num_failures, min_nodes=2, max_nodes=4
  )
  section = config_lib.RecoverySection(method=method, num_failures=num_failures)
  depths = tuple(template.partition for template in found)
  return shapes_lib.Templates(depths, predictor, section, mixes=True, uses_all=uses_all)


def make_grid(*partitions, predictor=None):
  return shapes_lib.Templates(partitions, predictor or make_predictor(), uses_all=False)


def make_pipelines(partitions, nodes, *, has_replicas=False):
  return placement_lib.make_pipelines(partitions, nodes, has_replicas)


def copied_layers(before, after, nodes):
  copies = moves.plan_layer_copies(_PROFILE, before, after, nodes)
  return sum(copy.last - copy.first for copy in copies)


class PartitionsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("depth", make_depth(_TWO), 5, [2, 2]),
      ("at_most", make_depth(_TWO, max_pipelines=1), 5, [2]),
      ("templates", make_templates(), 7, [2, 2, 3]),
      # No node is left over, as in Oobleck, although a sum over more pipelines takes longer.
      ("slow_sums", make_templates(predictor=_SLOW_SUMS), 12, [4, 4, 4]),
      ("left_over", make_templates(predictor=_SLOW_SUMS, uses_all=False), 12, [4, 4]),
      ("grid", make_grid(_TWO, _THREE), 5, [2, 2]),
      ("grid_slow_sums", make_grid(_TWO, _THREE, _FOUR, predictor=_SLOW_SUMS), 12, [4]),
      ("even", speed_lib.TableShapes(2, False), 5, [3, 2]),
  )
  def test_sizes(self, shape, num_nodes, expected):
    got = [p.num_stages for p in shape.partitions(num_nodes)]
    self.assertEqual(got, expected)

  @parameterized.named_parameters(
      ("depth", make_depth(_TWO), 1, "Too few nodes for a pipeline of 2: 1"),
      ("templates", make_templates(), 3, "Too few nodes, 3: 2 pipelines"),
      ("rules", make_templates("rules"), 3, "Too few nodes, 3: 2 pipelines"),
      ("grid", make_grid(_THREE, _TWO), 1, "Too few nodes for a pipeline of 2: 1"),
      ("even", speed_lib.TableShapes(2, False), 1, "Too few nodes for a pipeline of 2: 1"),
  )
  def test_too_few(self, shape, num_nodes, message):
    with self.assertRaisesRegex(base.InfeasibleError, message):
      shape.partitions(num_nodes)
    self.assertEqual(shape.smallest.num_stages, 2)
    before = make_pipelines([_TWO, _TWO], range(4))
    with self.assertRaisesRegex(base.InfeasibleError, message):
      shape.adapt(before, list(range(num_nodes)))


class DepthTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Nodes, most pipelines, then pipelines, spares, layers that are copied.
      ("a_spare_comes", [0, 2, 3, 9], None, 2, [], 2),
      ("one_is_given_up", [0, 1, 3], None, 1, [3], 0),
      ("a_pipeline_joins", [0, 1, 2, 3, 8, 9], None, 3, [], 4),
      ("not_more_than", [0, 1, 2, 3, 8, 9], 2, 2, [8, 9], 0),
  )
  def test_adapt(self, nodes, most, num_pipelines, spares, num_copied):
    before = make_pipelines([_TWO, _TWO], range(4))
    shape = make_depth(_TWO, max_pipelines=most)
    after = shape.adapt(before, nodes)
    self.assertLen(after, num_pipelines)
    training = {n for p in after for n in p.nodes}
    self.assertEqual([n for n in nodes if n not in training], spares)
    self.assertEqual(copied_layers(before, after, nodes), num_copied)

  def test_waits_for_a_trigger(self):
    before = make_pipelines([_TWO, _TWO], range(4), has_replicas=True)
    roles, _ = failover.fail_over(before[0].roles, [1])
    doubled = (pipelines_lib.Pipeline(_TWO, roles), before[1])
    for refill, is_kept in ((True, False), (False, True)):
      shape = make_depth(_TWO, mode="lazy", max_pipelines=2, refill=refill, max_doubled=2.0)
      self.assertEqual(shape.adapt(before, range(5)), before)
      after = shape.adapt(doubled, [0, 2, 3, 9])
      self.assertEqual(after == doubled, is_kept)
      self.assertEqual(after[1], before[1])

  @parameterized.named_parameters(
      # Pipelines, nodes with two stages, spares, then the options of which one fires.
      ("nothing", 3, 0, 3, ()),
      ("refill", 3, 1, 1, ("refill",)),
      ("too_few_to_refill", 3, 2, 1, ()),
      ("max_doubled", 2, 3, 0, ("max_doubled",)),
      ("grow", 2, 0, 4, ("grow",)),
      ("all", 2, 3, 7, ("refill", "max_doubled", "grow")),
  )
  def test_triggers(self, num_pipelines, num_doubled, num_spares, fire):
    pipelines = [
        pipelines_lib.Pipeline(_FOUR, failover.Roles.initial(range(4 * i, 4 * i + 4)))
        for i in range(num_pipelines)
    ]
    for i in range(num_doubled):
      which, node = i % num_pipelines, 4 * (i % num_pipelines) + i // num_pipelines * 2
      roles, _ = failover.fail_over(pipelines[which].roles, [node])
      pipelines[which] = pipelines_lib.Pipeline(_FOUR, roles)
    nodes = [n for p in pipelines for n in p.nodes] + [*range(100, 100 + num_spares)]
    off = dict(refill=False, grow=False, max_doubled=2.0)
    on = dict(refill=True, grow=True, max_doubled=0.5)
    found = [
        name
        for name in on
        if shapes_lib.fires(
            config_lib.RecoverySection(**off | {name: on[name]}),
            pipelines,
            nodes,
            most=len(nodes) // 4,
        )
    ]
    self.assertCountEqual(found, fire)
    with self.subTest("a node is lost"):
      self.assertTrue(
          shapes_lib.fires(config_lib.RecoverySection(**off), pipelines, nodes[1:], most=1)
      )

  def test_refuses_layers_without_a_copy(self):
    before = make_pipelines([_TWO, _TWO], range(4))
    with self.assertRaisesRegex(base.InfeasibleError, "layer layer_2"):
      make_depth(_TWO).adapt(before, [0, 2])


class ReplanningTest(parameterized.TestCase):

  @parameterized.parameters(((4, 4),), ((3, 5),))
  def test_replanning_moves_least_of_equally_fast(self, sizes):
    # One layer takes longer than all others, so both covers are as fast.
    forward_ms = (8.0, 1.0, 1.0, 1.0, 1.0)
    profile = profiles.make_profile(
        profiles.make_layer(f"{i}", forward_ms=ms, backward_ms=2 * ms, parameter_bytes=1024)
        for i, ms in enumerate(forward_ms)
    )
    found = shapes_lib.make_templates(profile.layers, num_failures=1, min_nodes=3, max_nodes=5)
    depths = tuple(template.partition for template in found)
    shape = shapes_lib.Templates(depths, make_predictor(profile), mixes=True)
    self.assertEqual(shape.covers(8), ((3, 5), (4, 4)))
    before = make_pipelines([depths[n - 3] for n in sizes], range(8))
    self.assertEqual(shape.adapt(before, list(range(8))), before)


# Nodes that are left of each pipeline of 2 to 3, "." if none is, and those that join; then the
# pipelines by the rules, and the spares. f is 1.
_REGROUPED = """
keep_all                    abc de     -   abc de    -
keep_smaller                ac de      -   ac de     -
borrow                      a def      -   af de     -
borrow_from_largest         a de fgh   -   ah de fg  -
merge                       a de fg    -   dea fg    -
merge_two                   a b cd ef  -   ba cd ef  -
merge_two_needed            a b cd     -   ba cd     -
all_gone                    . cd ef    -   cd ef     -
all_gone_but_needed         . cde f    -   fe cd     -
joins_instead_of_borrowing  a def      x   ax def    -
joins_make_a_pipeline       ab de      xy  ab de xy  -
joins_the_smallest          abc de     x   abc dex   -
finds_no_place              abc def    x   abc def   x
no_more_pipelines           ab cd ef   xy  abx cdy ef  -
"""


class RegroupTest(parameterized.TestCase):
  """Oobleck's rules, against the paper and for all losses."""

  @parameterized.named_parameters(*tables.read_rows(_REGROUPED))
  def test_rules(self, groups, joined, want, spares):
    got = shapes_lib.regroup(
        [tuple(group.strip(".")) for group in groups.split()],
        joined=joined,
        min_nodes=2,
        max_nodes=3,
        min_pipelines=2,
        max_pipelines=3,
    )
    self.assertCountEqual(["".join(group) for group in got], want.split())
    placed = sum(got, ())
    self.assertEqual("".join(n for n in joined if n not in placed), spares)

  @parameterized.product(min_nodes=[1, 2, 3, 4], num_failures=[0, 1, 2])
  def test_all_losses(self, min_nodes, num_failures):
    max_nodes = shapes_lib.needed_max_nodes(min_nodes, num_failures=num_failures)
    num_tried = 0
    for num_pipelines in range(num_failures + 1, 5):
      for sizes in itertools.combinations_with_replacement(range(max_nodes + 1), num_pipelines):
        if sum(sizes) < (num_failures + 1) * min_nodes:
          continue
        num_tried += 1
        names = iter(range(sum(sizes)))
        groups = [tuple(itertools.islice(names, n)) for n in sizes]
        got = shapes_lib.regroup(
            groups,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            min_pipelines=num_failures + 1,
            max_pipelines=num_pipelines,
        )
        self.assertCountEqual(sum(got, ()), range(sum(sizes)))
        self.assertGreater(len(got), num_failures)
        for group in got:
          self.assertBetween(len(group), min_nodes, max_nodes)
        if min(sizes) >= min_nodes:
          self.assertEqual(got, tuple(groups))
    self.assertGreater(num_tried, 2)


_MIB = 2**20
# Layers, f, and the memory in layers of 4 MiB; then the numbers of nodes.
_NEEDED = """
no_limit               4  1  None  1
all_in_one             4  1  4     1
two_needed             4  1  2     2, 3
two_needed_at_odds     5  1  3     2, 3
three_needed           6  0  2     3, 4, 5
three_needed_one_lost  6  1  2     3, 4
three_needed_two_lost  6  2  2     3, 4
one_each               1  5  1     1
"""


def make_layers(num_layers, *, residual_mib=0):
  sizes = dict(parameter_bytes=_MIB, slot_bytes=_MIB, residual_bytes=residual_mib * _MIB)
  return [profiles.make_layer(f"layer_{i}", **sizes) for i in range(num_layers)]


class TemplatesTest(parameterized.TestCase):

  # That it suffices is seen where pipelines are regrouped after all losses.
  @parameterized.parameters(
      (1, 0, 1), (2, 0, 3), (2, 1, 3), (3, 1, 4), (5, 0, 9), (5, 1, 7), (5, 3, 6)
  )
  def test_needed_max_nodes(self, min_nodes, num_failures, want):
    got = shapes_lib.needed_max_nodes(min_nodes, num_failures=num_failures)
    self.assertEqual(got, want)

  @parameterized.named_parameters(
      (name, *map(ast.literal_eval, cells)) for name, *cells in tables.read_rows(_NEEDED)
  )
  def test_sizes(self, num_layers, num_failures, fitting, sizes):
    got = shapes_lib.make_templates(
        make_layers(num_layers),
        num_failures=num_failures,
        memory_limit_bytes=fitting and fitting * 4 * _MIB,
        max_nodes=0,
    )
    self.assertEqual([t.partition.num_stages for t in got], [*np.atleast_1d(sizes)])

  def test_partitions_and_memory(self):
    """The last stage keeps one of two microbatches, so it may have more layers."""
    found = shapes_lib.make_templates(
        make_layers(9, residual_mib=1),
        num_failures=0,
        memory_limit_bytes=30 * _MIB,
        **dict(num_microbatches=2, max_nodes=6),
    )
    mib = {t.partition.bounds: [num / _MIB for num in t.memory_bytes] for t in found}
    want = {
        (0, 4, 9): [24, 25],
        (0, 3, 6, 9): [18, 18, 15],
        (0, 2, 4, 6, 9): [12, 12, 12, 15],
        (0, 1, 3, 5, 7, 9): [6, 12, 12, 12, 10],
        (0, 1, 2, 3, 5, 7, 9): [6, 6, 6, 12, 12, 10],
    }
    self.assertEqual(mib, want)

  @parameterized.named_parameters(
      ("more_nodes_than_layers", dict(min_nodes=4), "min_nodes must be from 1 to 3 .* got 4"),
      (
          "a_layer_is_too_large",
          dict(memory_limit_bytes=_MIB),
          "No pipeline of 1 to 3 nodes fits. The one of 3 nodes misses by the "
          "least: .* needs 4.0 MiB in phase .*, which is 3.0 MiB too much",
      ),
      (
          "too_few_layers",
          dict(memory_limit_bytes=4 * _MIB, num_failures=0),
          "Pipelines of 5 nodes are needed .the smallest has 3, num_failures=0" ".*only 3 layers",
      ),
  )
  def test_refuses(self, options, message):
    error = ValueError if "min_nodes" in options else base.InfeasibleError
    with self.assertRaisesRegex(error, message):
      shapes_lib.make_templates(make_layers(3), **({"num_failures": 1} | options))
