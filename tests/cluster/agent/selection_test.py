"""Who is taken in, and whether those that are left out may be alive."""

from absl.testing import parameterized

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import events as events_lib, selection
from tests import members
from tests.cluster.agent import given


class SelectionTest(given.CoreCase):

  @parameterized.named_parameters(
      ("each_who_is_ready", {}, [3, 4]),
      ("not_whom_a_member_suspects", {2: [3]}, [4]),
      ("not_who_suspects_a_member", {3: [1]}, [4]),
      ("of_two_who_do_not_meet_the_first", {4: [3]}, [3]),
      ("whatever_others_say", {5: [3]}, [3, 4]),
      ("not_who_is_gone", {}, [4], messages.Gone("its worker ended"), 3),
      ("nobody_once_a_member_is_done", {}, [], messages.Done(), 1),
  )
  def test_newcomers(self, suspects, come, message=None, by=None):
    self.begin()
    for number in (1, 3, 4):
      self.state.roster.meet(members.member(number))
      self.on(given.said(number, messages.Ready()))
    for accuser, accused in suspects.items():
      self.on(given.silent(accuser, *accused))
    if message is not None:
      self.on(given.said(by, message))
    found = selection.find_newcomers(self.state)
    self.assertEqual([m.number for m in found], come)

  @parameterized.named_parameters(
      ("nobody_is_lost", [], [], "NONE", 5),
      ("one_is_lost", [4], [], "NONE", 5),
      ("the_majority_stays", [3, 4], [], "NONE", 5, 2),
      ("all_others_are_lost", [1, 2, 3, 4], [], "GREAT", 5),
      ("all_others_refuse", [], [1, 2, 3, 4], "SMALL", 5),
      ("on_another_host", [], [1, 2, 3, 4], "SMALL", 5, 0, 5, "aabbb"),
      ("on_several_hosts", [], [1, 2, 3, 4], "GREAT", 5, 0, 5, "aabbc"),
      ("on_several_hosts_but_one", [], [1, 2, 3], "SMALL", 5, 0, 5, "abcde"),
      ("on_the_other_host_of_two", [], [1], "NONE", 5, 0, 2, "ab"),
      ("on_several_hosts_for_long", [], [1, 2, 3, 4], "SMALL", 72, 0, 5, "abcde"),
      ("most_refuse_and_one_is_silent", [1], [2, 3, 4], "GREAT", 5),
      ("most_are_lost_for_two", [2, 3, 4], [], "GREAT", 5, 1),
      ("for_long", [1, 2, 3, 4], [], "GREAT", 70),
      ("for_so_long_that_all_stand_still", [1, 2, 3, 4], [], "SMALL", 72),
      ("half_of_four_seem_lost", [2, 3], [], "GREAT", 5, 0, 4),
      ("half_of_six_are_lost", [3, 4, 5], [], "GREAT", 5, 2, 6),
      ("the_other_of_two_is_silent", [1], [], "GREAT", 5, 0, 2),
      ("the_other_of_two_refuses", [], [1], "NONE", 5, 0, 2),
  )
  def test_doubt(self, silent, refused, want, now, of=0, num_members=5, hosts="h"):
    """Members 0 to `of` have lost others since second 1."""
    self.begin(numbers=range(num_members), hosts=hosts)
    self.on(events_lib.Ticked(), 1.0)
    suspects = tuple(
        messages.Suspect(f"life {n}", "it is lost", is_certain=n in refused)
        for n in sorted([*silent, *refused])
    )
    for number in range(of + 1):
      self.state.suspicions.note(f"life {number}", suspects, count=1, now=1.0)
    stay = {*range(num_members)} - {*silent, *refused}
    for tenth in range(10, 10 * now):
      self.state.now = tenth / 10
      self.state.watch.tick(self.state.now)
      for number in stay - {0}:
        self.state.watch.note(f"life {number}", self.state.now)
    found = selection.doubt(self.state, members.view(2, *sorted(stay)))
    self.assertEqual(found, selection.Uncertainty[want])
