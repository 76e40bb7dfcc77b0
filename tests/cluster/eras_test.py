from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.cluster import eras as eras_lib


def make_era(num_slots, first=(), base=0):
  return eras_lib.Era(1, "127.0.0.1:1", num_slots, tuple(first), base)


class ErasTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("of_the_beginning", make_era(4), [1, 2, 3, None, None]),
      (
          "members_and_a_joiner",
          make_era(6, [1, 4], 5),
          [None, 1, None, None, 2, 3, 4, 5, None],
      ),
      (
          "numbers_were_skipped",
          make_era(4, [0], 3),
          [1, None, None, 2, 3, None],
      ),
  )
  def test_slot_of(self, era, slots):
    self.assertEqual(
        [eras_lib.slot_of(era, n) for n in range(len(slots))], slots
    )

  @parameterized.named_parameters(
      ("first", 4, False),
      ("dead", 3, True),
      ("later", 5, False),
      ("beyond", 50, False),
  )
  def test_is_late(self, number, is_late):
    era = make_era(6, [1, 4], 5)
    self.assertEqual(eras_lib.is_late(era, number), is_late)

  @parameterized.named_parameters(
      ("empty", 4, (), 4, (), 0),
      ("room", 6, {4, 0}, 6, (0, 4), 5),
      ("no_room", 3, {4, 0, 9}, 5, (0, 4, 9), 10),
  )
  def test_begin_era(self, num_slots, nodes, want, first, base):
    era = eras_lib.begin_era(7, "h:1", num_slots=num_slots, nodes=nodes)
    self.assertEqual(era, eras_lib.Era(7, "h:1", want, first, base))

  @hypothesis.given(st.sets(st.integers(0, 40), max_size=8), st.integers(0, 12))
  def test_each_slot_belongs_to_one_node(self, nodes, num_slots):
    era = eras_lib.begin_era(1, "h:1", num_slots=num_slots, nodes=nodes)
    owners = {eras_lib.slot_of(era, n): n for n in range(80)}
    owners.pop(None)
    self.assertEqual(sorted(owners), list(range(1, era.num_slots)))
    self.assertEqual(tuple(owners[s] for s in sorted(owners)), era.numbers)
    self.assertIsNotNone(eras_lib.slot_of(era, max(nodes, default=-1) + 1))

  @parameterized.named_parameters(
      ("nobody_yet", {0}, (), set()),
      ("one_lags", {0, 1, 2}, (2, 1), {0}),
      ("all_moved", {0, 1, 2}, (2, 2), {0, 1}),
      ("nobody_known", {3, 4}, (), set()),
      ("ahead_of_it", {3, 4}, (9,), {3}),
  )
  def test_find_unused(self, there, used, unused):
    self.assertEqual(eras_lib.find_unused(there, used), unused)

  @parameterized.named_parameters(
      ("nobody_has_come", None, (), (), set()),
      ("the_last_to_come_registers_first", None, (2,), (0, 1, 2), set()),
      ("more_than_there_are_slots", None, (8,), range(9), set(range(9))),
      ("members", (1, 4), (4, 5), (0, 1, 2, 3, 4, 5), {1, 4, 5}),
      ("on_its_way", (1, 4), (), range(7), {1, 4, 5, 6}),
      ("all_members_are_gone", (), (7,), range(9), {7}),
  )
  def test_find_nodes(self, members, registered, tickets, nodes):
    found = eras_lib.find_nodes(
        members=members, registered=registered, tickets=tickets, num_slots=9
    )
    self.assertEqual(found, nodes)

  @parameterized.named_parameters(
      ("not_in_order", 9, (2, 1), 3, "in order"),
      ("base", 9, (1, 2), 2, "base=2 must be above"),
      ("slots", 3, (1, 2), 3, "num_slots=3 must be at least 4"),
  )
  def test_cannot_be_wrong(self, num_slots, first, base, message):
    with self.assertRaisesRegex(ValueError, message):
      make_era(num_slots, first, base)
