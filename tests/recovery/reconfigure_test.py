"""New pipelines are compared with the best of all, and rules with the paper."""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies

from bamboo_jax import base
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.recovery import cover as cover_lib
from bamboo_jax.recovery import moves
from bamboo_jax.recovery import placement
from bamboo_jax.recovery import planners
from bamboo_jax.recovery import reconfigure
from bamboo_jax.recovery import templates as templates_lib
from bamboo_jax.schedule import failover

_ONE = partition_lib.Partition((0, 4))
_TWO = partition_lib.Partition((0, 2, 4))
_THREE = partition_lib.Partition((0, 1, 2, 4))


def _profile(state_kib=(1, 1, 1, 1)):
  return cost_model.Profile(
      layers=tuple(
          cost_model.LayerCost(
              name=f"layer_{i}",
              forward_ms=1.0,
              backward_ms=2.0,
              update_ms=0.0,
              parameter_bytes=kib * 256,
              slot_bytes=kib * 768,
              activation_bytes=0,
              residual_bytes=0,
          )
          for i, kib in enumerate(state_kib)
      ),
      link_latency_ms=1.0,
      link_bytes_per_ms=1024.0,
      reduce_latency_ms=0.0,
      reduce_bytes_per_ms=1e9,
      dispatch_ms=0.0,
      measured=True,
      fingerprint={},
  )


def _pipelines(partitions, nodes, *, has_replicas=False):
  return placement.make_pipelines(partitions, nodes, has_replicas)


class MoveTest(parameterized.TestCase):

  def test_layers_of_nodes(self):
    pipelines = (
        pipelines_lib.Pipeline(_THREE, failover.Roles((0, 0, 2), {2: 0})),
        pipelines_lib.Pipeline(
            _TWO, failover.Roles((5, 6), {1: 5}), vacant=frozenset({0})
        ),
    )
    self.assertEqual(
        moves.owned_layers(pipelines), {0: {0, 1}, 2: {2, 3}, 6: {2, 3}}
    )
    self.assertEqual(
        moves.held_layers(pipelines),
        {0: {0, 1, 2, 3}, 2: {2, 3}, 5: {2, 3}, 6: {2, 3}},
    )
    self.assertEqual(moves.lost_layers(pipelines, {0}), ())
    self.assertEqual(moves.lost_layers(pipelines, {2, 5, 6, 9}), (0, 1))

  def test_copies(self):
    # 1 and 4 are lost; 3 joins, and owns all. 0 and 2 have been apart.
    before = _pipelines([_TWO, _THREE], [0, 1, 4, 5, 2])
    after = _pipelines([_ONE, _TWO], [3, 0, 2])
    got = moves.plan_move(_profile((1, 2, 3, 4)), before, after, {0, 2, 3, 5})
    self.assertEqual(
        got.copies,
        (
            moves.LayerCopy(0, 1, source=0, destination=3, num_bytes=1024),
            moves.LayerCopy(1, 2, source=5, destination=3, num_bytes=2048),
            moves.LayerCopy(2, 4, source=2, destination=3, num_bytes=7168),
        ),
    )
    self.assertEqual(got.num_bytes, 10 * 1024)
    self.assertEqual(got.num_moved_nodes, 2)
    self.assertEqual(got.transfer_ms(_profile()), 3.0 + 10.0)

  def test_nothing_to_copy(self):
    before = _pipelines([_TWO, _TWO], range(4), has_replicas=True)
    got = moves.plan_move(_profile(), before, before, range(4))
    self.assertEqual(got, moves.Move((), 0))
    self.assertEqual(got.transfer_ms(_profile()), 0.0)

  def test_replicas_count_as_copies(self):
    # Node 1 is lost; 0 has its stage, and needs no copy to own all.
    before = _pipelines([_TWO], [0, 1], has_replicas=True)
    after = _pipelines([_ONE], [0])
    got = moves.plan_move(_profile(), before, after, [0])
    self.assertEqual(got, moves.Move((), 1))

  def test_refuses_what_nobody_has(self):
    before = _pipelines([_TWO], [0, 1])
    with self.assertRaisesRegex(
        base.InfeasibleError, "No live node has a copy of layer layer_2"
    ):
      moves.plan_move(_profile(), before, _pipelines([_ONE], [0]), [0])

  @hypothesis.settings(deadline=None, max_examples=20, derandomize=True)
  @hypothesis.given(
      strategies.lists(strategies.integers(1, 9), min_size=4, max_size=4),
      strategies.permutations(range(7)),
      strategies.sampled_from(
          list(itertools.product([_ONE, _TWO, _THREE], repeat=2))
      ),
      strategies.sampled_from([[_TWO, _TWO], [_ONE, _THREE], [_TWO], [_THREE]]),
      strategies.booleans(),
      strategies.integers(0, 2),
  )
  def test_least_is_copied(
      self, sizes, order, old, new, has_replicas, num_lost
  ):
    profile = _profile(sizes)
    num_old = sum(p.num_stages for p in old)
    before = _pipelines(old, order[:num_old], has_replicas=has_replicas)
    nodes = sorted(order[num_lost:])[:5]
    hypothesis.assume(not moves.lost_layers(before, nodes))

    def cost(after):
      move = moves.plan_move(profile, before, after, nodes)
      return move.num_bytes, move.num_moved_nodes

    got = moves.assign_nodes(
        profile, before, new, nodes, has_replicas=has_replicas
    )
    num_places = sum(p.num_stages for p in new)
    least_bytes, fewest_moved = min(
        cost(_pipelines(new, chosen, has_replicas=has_replicas))
        for chosen in itertools.permutations(nodes, num_places)
    )
    num_bytes, num_moved = cost(got)
    self.assertEqual(num_bytes, least_bytes)
    self.assertBetween(num_moved, fewest_moved, fewest_moved + 1)


class RegroupTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Groups of 2 to 3 and who joins, then groups and spares, with f = 1.
      ("keep_all", ["abc", "de"], "", ["abc", "de"], ""),
      ("keep_smaller", ["ac", "de"], "", ["ac", "de"], ""),
      ("borrow", ["a", "def"], "", ["af", "de"], ""),
      ("borrow_from_largest", ["a", "de", "fgh"], "", ["ah", "de", "fg"], ""),
      ("merge", ["a", "de", "fg"], "", ["dea", "fg"], ""),
      ("merge_two", ["a", "b", "cd", "ef"], "", ["ba", "cd", "ef"], ""),
      ("merge_two_needed", ["a", "b", "cd"], "", ["ba", "cd"], ""),
      ("all_gone", ["", "cd", "ef"], "", ["cd", "ef"], ""),
      ("all_gone_but_needed", ["", "cde", "f"], "", ["fe", "cd"], ""),
      ("joins_instead_of_borrowing", ["a", "def"], "x", ["ax", "def"], ""),
      ("joins_make_a_pipeline", ["ab", "de"], "xy", ["ab", "de", "xy"], ""),
      ("joins_the_smallest", ["abc", "de"], "x", ["abc", "dex"], ""),
      ("finds_no_place", ["abc", "def"], "x", ["abc", "def"], "x"),
  )
  def test_rules(self, groups, joined, want, spares):
    got = reconfigure.regroup(
        [tuple(g) for g in groups],
        joined=joined,
        min_nodes=2,
        max_nodes=3,
        min_pipelines=2,
    )
    self.assertCountEqual(["".join(g) for g in got[0]], want)
    self.assertEqual("".join(got[1]), spares)

  @parameterized.product(min_nodes=[1, 2, 3, 4], num_failures=[0, 1, 2])
  def test_all_losses(self, min_nodes, num_failures):
    max_nodes = templates_lib.needed_max_nodes(
        min_nodes, num_failures=num_failures
    )
    num_tried = 0
    for num_pipelines in range(num_failures + 1, 5):
      for sizes in itertools.combinations_with_replacement(
          range(max_nodes + 1), num_pipelines
      ):
        if sum(sizes) < (num_failures + 1) * min_nodes:
          continue
        num_tried += 1
        names = iter(range(sum(sizes)))
        groups = [tuple(itertools.islice(names, n)) for n in sizes]
        got, spares = reconfigure.regroup(
            groups,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            min_pipelines=num_failures + 1,
        )
        self.assertEqual(spares, ())
        self.assertCountEqual(sum(got, ()), range(sum(sizes)))
        self.assertGreater(len(got), num_failures)
        for group in got:
          self.assertBetween(len(group), min_nodes, max_nodes)
        if min(sizes) >= min_nodes:
          self.assertEqual(got, tuple(groups))
    self.assertGreater(num_tried, 2)

  def test_refuses(self):
    with self.assertRaisesRegex(
        base.InfeasibleError, "3 nodes are too few: 2 pipelines of at least 2"
    ):
      reconfigure.regroup(
          [(1, 2), (3,)], min_nodes=2, max_nodes=3, min_pipelines=2
      )


def _coverer(**options):
  profile = _profile()
  templates = templates_lib.make_templates(
      profile.layers, num_failures=1, min_nodes=2, max_nodes=4
  )
  predictor = predictor_lib.Predictor(profile, num_microbatches=12, **options)
  return cover_lib.Coverer(templates, predictor)


class ReconfigureTest(parameterized.TestCase):

  def test_rules_keep_what_is_whole(self):
    coverer = _coverer()
    before = _pipelines([_THREE, _TWO], range(5))
    got = reconfigure.by_rules(before, [0, 2, 3, 4], coverer=coverer)
    self.assertEqual(got.pipelines[1], before[1])
    self.assertEqual([set(p.nodes) for p in got.pipelines], [{0, 2}, {3, 4}])
    # Layer 1 is lost with node 1: 3 has the other copy.
    self.assertEqual(
        got.move.copies, (moves.LayerCopy(1, 2, 3, 0, num_bytes=1024),)
    )
    self.assertEqual(got.spares, ())
    self.assertEqual(got.num_microbatches, (6, 6))

  @parameterized.product(
      lost=[(0,), (4,), (0, 4), (1, 5), (3, 6, 7), (0, 1, 2)],
      mode=["none", "lazy"],
      planner=["by_rules", "by_replanning"],
  )
  def test_all_nodes_train_on_all_layers(self, lost, mode, planner):
    coverer = _coverer(mode=mode)
    before = _pipelines(
        [_THREE, _THREE, _TWO], range(8), has_replicas=mode == "lazy"
    )
    nodes = [node for node in range(10) if node not in lost]
    got = getattr(reconfigure, planner)(before, nodes, coverer=coverer)
    training = [node for p in got.pipelines for node in p.nodes]
    self.assertCountEqual((*training, *got.spares), nodes)
    if planner == "by_replanning":
      self.assertEqual(got.spares, ())
    self.assertEqual(sum(got.num_microbatches), 12)
    self.assertEqual(got.step_time, coverer.predictor.predict(got.pipelines))
    held = moves.held_layers(before)
    for copy in got.move.copies:
      self.assertNotIn(copy.source, lost)
      self.assertLessEqual({*range(copy.first, copy.last)}, held[copy.source])

  def test_replanning_is_the_best_of_all(self):
    coverer, profile = _coverer(), _profile()
    before = _pipelines([_THREE, _THREE], range(6))
    nodes = [1, 2, 3, 4, 5, 6]
    got = reconfigure.by_replanning(before, nodes, coverer=coverer)
    costs = []
    for sizes in [(2, 4), (3, 3), (2, 2, 2)]:
      partitions = [coverer.templates.of(n).partition for n in sizes]
      step_ms = coverer.predictor.predict(
          _pipelines(partitions, range(6))
      ).total_ms
      for chosen in itertools.permutations(nodes):
        after = _pipelines(partitions, chosen)
        move = moves.plan_move(profile, before, after, nodes)
        costs.append((step_ms, move.num_bytes, move.num_moved_nodes))
    self.assertEqual(got.cost, min(costs))

  @parameterized.named_parameters(
      # Nodes, most pipelines, then pipelines, spares, bytes in KiB.
      ("a_spare_comes", [0, 2, 3, 9], None, 2, [], 2),
      ("one_is_given_up", [0, 1, 3], None, 1, [3], 0),
      ("a_pipeline_joins", [0, 1, 2, 3, 8, 9], None, 3, [], 4),
      ("not_more_than", [0, 1, 2, 3, 8, 9], 2, 2, [8, 9], 0),
  )
  def test_depth(self, nodes, most, num_pipelines, spares, kib):
    before = _pipelines([_TWO, _TWO], range(4))
    got = reconfigure.by_depth(
        before,
        nodes,
        partition=_TWO,
        predictor=predictor_lib.Predictor(_profile(), num_microbatches=12),
        max_pipelines=most,
    )
    self.assertLen(got.pipelines, num_pipelines)
    self.assertEqual(list(got.spares), spares)
    self.assertEqual(got.move.num_bytes, kib * 1024)
    self.assertEqual({p.partition for p in got.pipelines}, {_TWO})

  def test_infeasible(self):
    before = _pipelines([_TWO, _TWO], range(4))
    predictor = predictor_lib.Predictor(_profile(), num_microbatches=12)
    with self.assertRaisesRegex(
        base.InfeasibleError, "1 nodes are too few for a pipeline of 2 stages"
    ):
      reconfigure.by_depth(before, [0], partition=_TWO, predictor=predictor)
    with self.assertRaisesRegex(base.InfeasibleError, "copy of layer layer_2"):
      reconfigure.by_depth(before, [0, 2], partition=_TWO, predictor=predictor)
    for planner in (reconfigure.by_rules, reconfigure.by_replanning):
      with self.assertRaisesRegex(base.InfeasibleError, "3 nodes are too few"):
        planner(before, [0, 1, 2], coverer=_coverer())


class PlannersTest(parameterized.TestCase):

  @parameterized.parameters("rules", "replanning")
  def test_templates(self, method):
    planner = planners.TemplatePlanner(
        _coverer(), method, fixed_secs={"reconfigure": 2.0}
    )
    zones = {n: "ab"[n % 2] for n in range(7)}
    pipelines = planner.fresh(range(7), zones)
    self.assertCountEqual([n for p in pipelines for n in p.nodes], range(7))
    self.assertEqual(planner.adapt(pipelines, range(7), zones), pipelines)
    after = planner.adapt(pipelines, range(1, 7), zones)
    self.assertCountEqual([n for p in after for n in p.nodes], range(1, 7))
    self.assertGreater(planner.step_secs(after), 0.0)
    self.assertEqual(planner.pause_secs("reconfigure", after, after), 2.0)
    self.assertGreater(planner.pause_secs("reconfigure", pipelines, after), 2.0)
    self.assertEqual(planner.pause_secs("checkpoint", pipelines, after), 0.0)
    with self.assertRaisesRegex(base.InfeasibleError, "3 nodes are too few"):
      planner.fresh(range(3), zones)

  def test_depth_waits_for_a_trigger(self):
    planner = planners.DepthPlanner(
        _TWO,
        predictor_lib.Predictor(_profile(), num_microbatches=12, mode="lazy"),
    )
    pipelines = planner.fresh(range(5), {})
    self.assertLen(pipelines, 2)
    (spare,) = set(range(5)) - {n for p in pipelines for n in p.nodes}
    self.assertEqual(planner.adapt(pipelines, range(5), {}), pipelines)
    self.assertLen(planner.adapt(pipelines, range(6), {}), 3)
    victim = pipelines[0].roles.owners[1]
    roles, _ = failover.fail_over(pipelines[0].roles, {}, [victim])
    doubled = (pipelines_lib.Pipeline(_TWO, roles), pipelines[1])
    alive = [n for n in range(5) if n != victim]
    after = planner.adapt(doubled, alive, {})
    self.assertIn(spare, after[0].nodes)
    self.assertEqual(after[1], pipelines[1])
    self.assertLess(planner.step_secs(after), planner.step_secs(doubled))

  def test_depth_makes_no_pipeline_of_too_few(self):
    planner = planners.DepthPlanner(
        _TWO, predictor_lib.Predictor(_profile(), num_microbatches=12)
    )
    with self.assertRaisesRegex(base.InfeasibleError, "1 nodes"):
      planner.fresh([0], {})

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, "did you mean 'rules'"):
      planners.TemplatePlanner(_coverer(), "rule")


if __name__ == "__main__":
  absltest.main()
