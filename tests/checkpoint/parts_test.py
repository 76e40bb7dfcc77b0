import itertools

from absl.testing import parameterized

from bamboo_jax.base import logs
from bamboo_jax.checkpoint import manifest, parts


def _risk(view=4, *, rate=2 << 20, left_secs=30.0, part_mib=8, **changes):
  """Returns a risk whose part takes 4 s."""
  return parts.Risk(
      view=view,
      leaving=(1, 2, 3),
      holders=(1, 3),
      num_bytes=3 << 20,
      part_bytes=part_mib << 20,
      rate=rate,
      left_secs=left_secs,
      **changes,
  )


class PartsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("one_pipeline", [(2, 1, 0)], (), {2: (0,), 1: (1,), 0: (2,)}),
      ("in_turn", [(0, 1, 2), (3, 4, 5)], (), {0: (0,), 4: (1,), 2: (2,)}),
      ("both_of_one", [(5, 1, 5), (3, 4, 6)], (), {5: (0, 2), 4: (1,)}),
      ("the_others_write", [(0, 1), (2, 3)], (0, 1), {2: (0,), 3: (1,)}),
      ("but_what_only_they_have", [(0, 1, 4), (2, 3, 5)], (0, 1, 3), {2: (0,), 3: (1,), 4: (2,)}),
      ("all_leave", [(0, 1), (2, 3)], (0, 1, 2, 3), {0: (0,), 3: (1,)}),
  )
  def test_who_writes(self, owners, leaving, stages):
    self.assertEqual(parts.deal(owners, leaving), stages)

  @parameterized.named_parameters(
      ("it_fits", {}, True, "takes 4.0 s, and 30 s are left$"),
      (
          "no_rate_yet",
          {"rate": 0.0},
          True,
          "; the rate of saves is not known yet, and 30 s are left$",
      ),
      ("a_bit_too_long", {"left_secs": 3.9}, True, "and 4 s are left: it will not fit, unless"),
      ("there_are_takers", {"has_takers": True}, True, "^3.0 MiB "),
      ("takers_need_the_rest", {"left_secs": 7, "has_takers": True}, False, "^not yet, .*left$"),
      ("they_have_it", {"left_secs": 8, "has_takers": True}, True, "^3.0 MiB .* 8 s are left$"),
  )
  def test_decision(self, changes, saves, text):
    found = parts.decide_exit([_risk(**changes)])
    self.assertEqual((found.view, found.leaving, found.saves), (4, (1, 2, 3), saves))
    self.assertRegex(found.text, text)

  def test_who_has_not_written_yet_is_as_slow_as_the_slowest(self):
    new = _risk(part_mib=16, rate=0.0, left_secs=9.0, has_takers=True)
    for others, saves in (([_risk(has_takers=True)], False), ([], True)):
      self.assertEqual(parts.decide_exit([new, *others]).saves, saves)

  def test_what_members_see_is_joined(self):
    self.assertIsNone(parts.decide_exit([]))
    logs.note_names({1: "n1", 3: "n3"})
    old = _risk(3, left_secs=1.0)  # It has missed that they live.
    said = [old, _risk(left_secs=9.0, has_takers=True), _risk(part_mib=16, left_secs=10.0)]
    for order in itertools.permutations(said):
      found = parts.decide_exit(order)
      self.assertEqual((found.view, found.saves), (4, True))
      self.assertEqual(
          found.text,
          "3.0 MiB of the state are only on n1, n3, to be preempted; the largest part, "
          "16.0 MiB at 2.0 MiB/s, takes 8.0 s, and 9 s are left",
      )

  @parameterized.parameters(
      (0, [(0, 1), (2, 3)], {0: (0,), 3: (1,)}, False),
      (1, [(4, 1), (2, 3)], {4: (0,), 3: (1,)}, False),
      (1, [(1, 1)], {1: (0, 1)}, True),
  )
  def test_the_first_owner_begins_a_save(self, writer, owners, stages, is_alone):
    said = {m: parts.PartsReport("", False) for m in range(9)}
    self.assertIsNone(parts.plan_save(said, 8, view=3, owners=owners))
    said[writer] = parts.PartsReport("5-ab", False)
    save = parts.plan_save(said, 8, view=3, owners=owners)
    name = manifest.CheckpointName(5, 3, 8, "ab")
    self.assertEqual(save, parts.Save(name, writer, stages))
    self.assertEqual(save.is_alone, is_alone)
