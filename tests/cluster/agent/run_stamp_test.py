"""A store and a folder that do not belong together: one line says what."""

import math

from absl.testing import parameterized

from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib, run_stamp, state as state_lib
from bamboo_jax.cluster.store import etcd as etcd_lib, fence as fence_lib, registry as registry_lib
from tests import members
from tests.cluster.agent import given


class RunStampTest(parameterized.TestCase):

  def find(self, there, claim, *, moves=1, until_secs=math.inf, made=(), answers=0):
    """Returns the requests other than reads, until the stamp is known.

    The run of `claim` has `made` views, and answers as many questions.
    """
    made = [*made]
    state = state_lib.AgentState(given.make_options("n0"), incarnation="me")
    flow, answer, beat, asked = run_stamp.find(state), None, 0, []
    with self.assertRaises(StopIteration):
      while True:
        request = flow.send(answer)
        beat += moves * (state.now < until_secs)
        match request:
          case events_lib.Sleep(secs):
            state.now += secs
            answer = state.now
          case events_lib.Store(args=()):
            answer = there
          case events_lib.CallFence("read"):
            answer = claim, beat if claim else 0
          case events_lib.CallFence("views_after"):
            answer = list(made)
          case events_lib.CallFence("claim_view", (_, view)):
            asked.append(view.text)
            if view.number > len(made):
              made.append(view)
            if view.is_ask and answers:
              answers -= 1
              made.append(views.answer(view, "n1"))
            answer = made[view.number - 1]
          case events_lib.CallFence("replace", (stamp,)):
            asked.append(f"replace {stamp}")
            claim = fence_lib.Claim(stamp)
          case events_lib.CallFence("create", (stamp,)):
            asked.append(f"create {stamp}")
            claim, answer = fence_lib.Claim(stamp), True
          case events_lib.Store(args=(stamp,)):
            asked.append(f"store {stamp}")
            there = stamp
    self.assertEqual(state.stamp, there)
    return asked

  @parameterized.parameters(
      ("a", "b", ValueError, "Another run than run 'run' is running in"),
      ("a", None, ValueError, "workdir must be the folder in which all nodes"),
      ("a", "bamboo-train-1", ValueError, "bamboo train is running in workdir; "),
      ("", "bamboo-train-1", ValueError, "bamboo train is running in workdir; "),
      ("", "b", OSError, "There is no run 'run' in etcd, but one is runn"),
  )
  def test_refused(self, there, claimed, error, message):
    claim = claimed and fence_lib.Claim(claimed)
    with self.assertRaisesRegex(error, message):
      self.find(there, claim)

  @parameterized.parameters(
      ("", None, ["create me", "store me", "store me"]),
      ("a", "a", ["store a"]),
      ("a", "b", ["replace a", "store a"]),
      ("", "b", ["store me", "replace me", "store me"]),
  )
  def test_accepted_if_nobody_lives_there(self, there, claimed, asked):
    claim = claimed and fence_lib.Claim(claimed)
    self.assertEqual(self.find(there, claim, moves=0), asked)

  @parameterized.parameters(
      ("b", [members.view(1, 0, 1)], [(1, 2)]),
      ("b", [members.view(1, 0, 1)], [(1, 2), (1, 4), (1, 6)]),
      ("bamboo-train-1", [], [(0, 1)]),
      ("bamboo-train-1", [], [(0, 1), (1, 3)]),
  )
  def test_it_asks_members_first_and_all_but_the_last_time_one_answers(
      self, claimed, made, questions
  ):
    claim, answers = fence_lib.Claim(claimed), len(questions) - 1
    found = self.find("a", claim, moves=0, made=made, answers=answers)
    want = []
    for number, asked in questions:
      want.append(f"n0 asks whether any member of view {number} is alive")
      want.append(f"no member of view {asked} is left")
    self.assertEqual(found, [*want, "replace a", "store a"])

  def test_a_run_that_ends_meanwhile_refuses_nobody(self):
    limits = given.make_options("n0").limits
    until_secs = limits.start_silence_secs - 0.6 * limits.most_silence_secs
    asked = self.find("a", fence_lib.Claim("b"), until_secs=until_secs)
    self.assertEqual(asked, ["replace a", "store a"])


class BeatTest(given.CoreCase):

  def beats(self):
    """Whether this agent shows for all that members live."""
    flow = run_stamp.beat(self.state)
    beat = events_lib.CallFence("beat", (self.state.stamp,))
    return [flow.send(None), flow.send(1.0)][1] == beat

  def test_the_first_that_is_not_missed_shows_that_members_live(self):
    self.begin(me=1)
    self.assertFalse(self.beats())
    for name in ("gone", "done"):
      self.begin(me=1)
      over = {"life 0": ""} if name == "gone" else {"life 0"}
      setattr(self.state.roster, name, over)
      self.assertTrue(self.beats(), name)
    self.begin(me=1)
    self.on(given.refused(0))
    self.assertTrue(self.beats())
    self.begin(me=3)  # No member.
    for number in range(3):
      self.on(given.refused(number))
    self.assertFalse(self.beats())

  def test_at_a_beginning_all_do(self):
    self.begin(numbers=())
    self.assertTrue(self.beats())


class LostStoreTest(given.CoreCase):

  def look(self, found):
    """Returns the decision for an empty store and the given folder."""
    self.begin()
    flow = run_stamp.look(self.state)
    self.assertEqual(next(flow).method, registry_lib.Registry.look)
    lost = etcd_lib.LostStoreError("etcd has lost its data.")
    request = flow.throw(lost)
    self.assertEqual(request.method, registry_lib.Registry.find_lost)
    self.state.lost_secs = self.state.now
    self.assertEqual(flow.send(("", None)), given.made_after(1))
    try:
      return flow.send(found)
    except OSError as error:
      return f"{error}"

  def test_the_oldest_gives_it_back_what_the_folder_says(self):
    request = self.look([])
    self.assertEqual(request.method, registry_lib.Registry.restore)
    self.assertEqual(request.args[2], members.view(1, 0, 1, 2))

  def test_it_does_not_if_others_are_further(self):
    found = self.look([members.view(2, 0, 1)])
    self.assertEqual(found, "The store is not to be trusted.")
