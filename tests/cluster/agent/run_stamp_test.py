"""A store and a folder that do not belong together: one line says what."""

import math

from absl.testing import parameterized

from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import run_stamp
from bamboo_jax.cluster.agent import state as state_lib
from bamboo_jax.cluster.store import fence as fence_lib
from tests.cluster.agent import given


class RunStampTest(parameterized.TestCase):

  def find(self, there, claim, *, moves=1, until_secs=math.inf):
    """Returns what is asked for besides looks, until the stamp is known."""
    state = state_lib.State(given.make_options("n0"), incarnation="me")
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
          case events_lib.Fence("read"):
            answer = claim, beat if claim else 0
          case events_lib.Fence("replace", (stamp,)):
            asked.append(f"replace {stamp}")
            claim = fence_lib.Claim(stamp)
          case events_lib.Fence("create", (stamp,)):
            asked.append(f"create {stamp}")
            claim, answer = fence_lib.Claim(stamp), True
          case events_lib.Store(args=(stamp,)):
            asked.append(f"store {stamp}")
            there = stamp
    self.assertEqual(state.stamp, there)
    return asked

  @parameterized.parameters(
      ("a", "b", ValueError, "Another run than run 'run' lives in workdir."),
      ("a", None, ValueError, "workdir must be the folder in which all nodes"),
      ("", "b", OSError, "etcd knows no run 'run', and the one in workdir"),
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

  def test_a_run_that_ends_meanwhile_refuses_nobody(self):
    limits = given.make_options("n0").limits
    until_secs = limits.start_silence_secs - 0.6 * limits.most_silence_secs
    asked = self.find("a", fence_lib.Claim("b"), until_secs=until_secs)
    self.assertEqual(asked, ["replace a", "store a"])
