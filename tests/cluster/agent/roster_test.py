"""Whom an agent knows, who is taken in, and whether those that are left out may be alive."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax import config
from bamboo_jax.cluster import messages, views
from bamboo_jax.cluster.agent import roster as roster_lib
from tests import members
from tests.cluster.agent import given


class RosterTest(parameterized.TestCase):

  def make(self, *, numbers=(0, 1, 2), hosts="h"):
    self.roster = roster_lib.Roster("life 0", config.ClusterSection(), 4)
    found = [members.member(n, host=hosts[n % len(hosts)]) for n in numbers]
    self.roster.me = found[0]
    self.roster.known = {m.incarnation: m for m in found}
    self.roster.adopt(dataclasses.replace(members.view(1), members=tuple(found)))
    for number in numbers[1:]:
      self.roster.watch.add(f"life {number}", 0.0)

  def suspect(self, accuser, *accused):
    said = given.suspects(*accused)
    self.roster.suspicions.note(f"life {accuser}", said.suspects, count=1, now=0.0)

  def test_others_may_have_missed_the_last_few_views(self):
    self.make()
    for number in range(1, 13):
      self.roster.adopt(views.View(number, (members.member(0),), ""))
    self.roster.drop_older(11, needed=[1])
    found = [view.number for view in self.roster.recent_views()]
    self.assertEqual(found, [1, *range(3, 13)])
    self.assertEqual(self.roster.find_view(2).members, ())
    self.assertEqual(self.roster.find_view(3).members, (members.member(0),))

  def test_one_that_seems_cut_off_waits_before_it_removes_another(self):
    """Others have accused this one for a second; its own suspicion is new."""
    self.make(numbers=(0, 1, 2, 3))
    for accuser in (1, 2):
      self.suspect(accuser, 0)
    for tenth in range(1, 40):
      self.roster.watch.tick(tenth / 10)
      for number in (1, 2, 3):
        self.roster.watch.note(f"life {number}", tenth / 10)
      if tenth == 9:
        refused = (messages.Suspect("life 3", "refused", is_certain=True),)
        self.roster.suspicions.note("life 0", refused, count=1, now=0.9)
      want = {"life 3": "refused"} if tenth >= 39 else {}
      self.assertEqual(self.roster.find_lost(tenth / 10), want, msg=tenth)

  @parameterized.named_parameters(
      ("each_who_is_ready", {}, [3, 4]),
      ("not_whom_a_member_suspects", {2: [3]}, [4]),
      ("not_who_suspects_a_member", {3: [1]}, [4]),
      ("of_two_who_do_not_meet_the_first", {4: [3]}, [3]),
      ("whatever_others_say", {5: [3]}, [3, 4]),
      ("not_who_is_gone", {}, [4], "gone"),
      ("not_whose_worker_began_elsewhere", {}, [4], "elsewhere"),
      ("nobody_once_a_member_is_done", {}, [], "done"),
  )
  def test_newcomers(self, suspects, come, what=""):
    self.make()
    for number in (3, 4):
      self.roster.known[f"life {number}"] = members.member(number)
      origin = 0 if what == "elsewhere" and number == 3 else None
      self.roster.note(f"life {number}", messages.Say(is_ready=True, origin=origin), 0.0)
    for accuser, accused in suspects.items():
      self.suspect(accuser, *accused)
    if what == "gone":
      self.roster.gone["life 3"] = "its worker ended"
    if what == "done":
      self.roster.done.add("life 1")
    self.assertEqual([m.number for m in self.roster.find_newcomers()], come)

  @parameterized.named_parameters(
      # Agents that are ready, seconds since then, and the first members.
      ("others_are_waited_for", "012", 1.0, None),
      ("all", "0123", 1.0, [0, 1, 2, 3]),
      ("without_the_late", "012", config.ClusterSection().gather_secs, [0, 1, 2]),
      ("not_whom_it_suspects", "0123", config.ClusterSection().gather_secs, [0, 1, 3], "suspects"),
      ("not_while_it_suspects_one", "0123", 1.0, None, "suspects"),
      ("of_a_run_that_was_short", "012", roster_lib.SETTLE_SECS, [0, 1, 2], "is_short"),
      ("not_before_this_agent", "123", 999.0, None),
  )
  def test_first_members(self, ready, secs, want, what=""):
    self.roster = roster_lib.Roster("life 0", config.ClusterSection(), 4)
    self.roster.me, self.roster.origin = members.member(0), 0
    self.roster.is_short = what == "is_short"
    for number in map(int, ready):
      self.roster.known[f"life {number}"] = members.member(number)
      self.roster.note(f"life {number}", messages.Say(is_ready=True, origin=0), 0.0)
    if what == "suspects":
      self.suspect(0, 2)
    found = self.roster.find_first(secs)
    self.assertEqual(found and [m.number for m in found], want)

  @parameterized.named_parameters(
      ("nobody_is_lost", "", "", "NONE", 5),
      ("one_is_lost", "4", "", "NONE", 5),
      ("the_majority_stays", "34", "", "NONE", 5, 2),
      ("all_others_are_lost", "1234", "", "GREAT", 5),
      ("all_others_refuse", "", "1234", "SMALL", 5),
      ("on_another_host", "", "1234", "SMALL", 5, 0, 5, "aabbb"),
      ("on_several_hosts", "", "1234", "GREAT", 5, 0, 5, "aabbc"),
      ("on_several_hosts_but_one", "", "123", "SMALL", 5, 0, 5, "abcde"),
      ("on_the_other_host_of_two", "", "1", "NONE", 5, 0, 2, "ab"),
      ("on_several_hosts_for_long", "", "1234", "SMALL", 72, 0, 5, "abcde"),
      ("most_refuse_and_one_is_silent", "1", "234", "GREAT", 5),
      ("most_are_lost_for_two", "234", "", "GREAT", 5, 1),
      ("for_long", "1234", "", "GREAT", 70),
      ("for_so_long_that_all_stand_still", "1234", "", "SMALL", 72),
      ("half_of_four_seem_lost", "23", "", "GREAT", 5, 0, 4),
      ("half_of_six_are_lost", "345", "", "GREAT", 5, 2, 6),
      ("the_other_of_two_is_silent", "1", "", "GREAT", 5, 0, 2),
      ("the_other_of_two_refuses", "", "1", "NONE", 5, 0, 2),
      ("no_other_host_is_heard", "", "1", "GREAT", 5, 0, 3, "abc", {2}),
      ("another_host_is_heard", "", "1", "NONE", 5, 0, 3, "abc"),
  )
  def test_doubt(self, silent, refused, want, secs, of=0, num_members=5, hosts="h", quiet=()):
    """Members 0 to `of` have lost others since second 1, and do not hear those that are `quiet`."""
    self.make(numbers=range(num_members), hosts=hosts)
    self.roster.watch.tick(1.0)
    suspects = tuple(
        messages.Suspect(f"life {n}", "it is lost", is_certain=n in refused)
        for n in sorted(silent + refused)
    )
    for number in range(of + 1):
      self.roster.suspicions.note(f"life {number}", suspects, count=1, now=1.0)
    stay = {*range(num_members)} - {*map(int, silent + refused)}
    now = 1.0
    for tenth in range(10, 10 * secs):
      now = tenth / 10
      self.roster.watch.tick(now)
      for number in stay - {0, *quiet}:
        self.roster.watch.note(f"life {number}", now)
    found = self.roster.doubt(members.view(2, *sorted(stay)), now)
    self.assertEqual(found, roster_lib.Uncertainty[want])

  def test_doubt_about_one_while_all_others_refuse(self):
    """Only this one is due yet, as those that were away wait for longer."""
    self.make(numbers=range(4), hosts="abcd")
    self.roster.watch.tick(1.0)
    refused = tuple(messages.Suspect(f"life {n}", "refused", is_certain=True) for n in (1, 2, 3))
    self.roster.suspicions.note("life 0", refused, count=1, now=1.0)
    found = self.roster.doubt(members.view(2, 0, 1, 2), 1.1)
    self.assertEqual(found, roster_lib.Uncertainty.GREAT)
