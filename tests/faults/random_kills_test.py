"""Every random kill is made good before the next."""

import itertools

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.faults import faults as faults_lib


def make(num_kills, *, seed=0, num_steps=90, num_pipelines=2, num_stages=2, **more):
  """Returns kills, which survive being written to a file."""
  sizes = dict(num_steps=num_steps, num_pipelines=num_pipelines, num_stages=num_stages)
  faults = faults_lib.make_random_kills(num_kills, seed=seed, **sizes, **more)
  faults_lib.check_faults(faults, num_instructions=1, source="random", **sizes)
  again = faults_lib.parse_faults(faults_lib.render(faults), source="random")
  assert (again, [f.line for f in again]) == (faults, [f.line for f in faults])
  return faults


class RandomKillsTest(parameterized.TestCase):

  @hypothesis.given(st.integers(1, 20), st.integers(0, 50), st.integers(0, 9))
  def test_kills_and_joins_take_turns(self, num_kills, more, seed):
    faults = make(num_kills, seed=seed, num_steps=2 * num_kills + 1 + more, num_stages=3)
    self.assertEqual([f.kind for f in faults], ["kill", "join"] * num_kills)
    for kill, join in zip(faults[::2], faults[1::2], strict=True):
      self.assertLess(kill.step, join.step)
    for join, kill in zip(faults[1::2], faults[2::2], strict=False):
      self.assertLessEqual(join.step, kill.step)

  def test_kinds(self):
    faults = make(40, kinds=("leader", "zone", "all"), zones="abc")
    zones = {("zone", zone) for zone in "abc"}
    without = {("leader", ""), ("all", ""), ("join", "")}
    self.assertEqual({(f.kind, f.node) for f in faults}, zones | without)
    joins = {"leader": 1, "zone": 2, "all": 0, "join": -1}
    self.assertEqual(sum(joins[f.kind] for f in faults), 0)

  def test_nodes_that_are_slow_for_a_while(self):
    faults = make(3, num_steps=20, kinds=("slow",))
    self.assertEqual([f.kind for f in faults], ["slow"] * 3)
    for fault, later in itertools.pairwise(faults):
      self.assertLess(fault.step, fault.until)
      self.assertLessEqual(fault.until, later.step)

  def test_the_seed_decides(self):
    first, same, other = (make(5, seed=seed) for seed in (1, 1, 2))
    self.assertEqual(first, same)
    self.assertNotEqual(first, other)

  @parameterized.parameters(
      (dict(num_kills=0), "at least 1, got 0"),
      (dict(num_kills=3, num_steps=6), "at least 7 steps, got"),
      (dict(num_kills=3, kinds=("zon",)), "--kinds 'zon'.*'zone'"),
  )
  def test_refused(self, given, message):
    with self.assertRaisesRegex(ValueError, message):
      make(**given)
