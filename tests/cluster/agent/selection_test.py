"""Who is taken in."""

from absl.testing import parameterized

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import selection
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
