"""Oobleck's rules, against the paper and for all losses."""

import itertools

from absl.testing import parameterized

from bamboo_jax.recovery import shapes as shapes_lib, templates as templates_lib


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
    got = shapes_lib.regroup(
        [tuple(g) for g in groups], joined=joined, min_nodes=2, max_nodes=3, min_pipelines=2
    )
    self.assertCountEqual(["".join(g) for g in got], want)
    placed = sum(got, ())
    self.assertEqual("".join(n for n in joined if n not in placed), spares)

  @parameterized.product(min_nodes=[1, 2, 3, 4], num_failures=[0, 1, 2])
  def test_all_losses(self, min_nodes, num_failures):
    max_nodes = templates_lib.needed_max_nodes(min_nodes, num_failures=num_failures)
    num_tried = 0
    for num_pipelines in range(num_failures + 1, 5):
      for sizes in itertools.combinations_with_replacement(range(max_nodes + 1), num_pipelines):
        if sum(sizes) < (num_failures + 1) * min_nodes:
          continue
        num_tried += 1
        names = iter(range(sum(sizes)))
        groups = [tuple(itertools.islice(names, n)) for n in sizes]
        got = shapes_lib.regroup(
            groups, min_nodes=min_nodes, max_nodes=max_nodes, min_pipelines=num_failures + 1
        )
        self.assertCountEqual(sum(got, ()), range(sum(sizes)))
        self.assertGreater(len(got), num_failures)
        for group in got:
          self.assertBetween(len(group), min_nodes, max_nodes)
        if min(sizes) >= min_nodes:
          self.assertEqual(got, tuple(groups))
    self.assertGreater(num_tried, 2)
