"""Every random kill is made good before the next."""

import itertools

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.faults import faults as faults_lib, random_kills


class RandomKillsTest(parameterized.TestCase):

  @hypothesis.given(st.integers(1, 20), st.integers(0, 50), st.integers(0, 9))
  def test_kills_and_joins_take_turns(self, num_kills, more, seed):
    sizes = {"num_steps": 2 * num_kills + 1 + more, "num_pipelines": 2}
    sizes |= {"num_stages": 3}
    faults = random_kills.make_random_kills(num_kills, seed=seed, **sizes)
    self.assertEqual([f.kind for f in faults], ["kill", "join"] * num_kills)
    for kill, join in zip(faults[::2], faults[1::2], strict=True):
      self.assertLess(kill.step, join.step)
    for join, kill in zip(faults[1::2], faults[2::2], strict=False):
      self.assertLessEqual(join.step, kill.step)
    faults_lib.check_faults(faults, num_instructions=1, source="random", **sizes)
    text = faults_lib.render(faults)
    again = faults_lib.parse_faults(text, source="random")
    self.assertEqual(again, faults)

  def test_kinds(self):
    draw = lambda *kinds: random_kills.make_random_kills(
        40, seed=0, num_steps=90, num_pipelines=2, num_stages=2, kinds=kinds, zones=("a", "b", "c")
    )
    faults = draw("leader", "zone", "all")
    zones = {("zone", zone) for zone in "abc"}
    without = {("leader", ""), ("all", ""), ("join", "")}
    self.assertEqual({(f.kind, f.node) for f in faults}, zones | without)
    joins = {"leader": 1, "zone": 2, "all": 0, "join": -1}
    self.assertEqual(sum(joins[f.kind] for f in faults), 0)
    text = faults_lib.render(faults)
    again = faults_lib.parse_faults(text, source="random")
    self.assertEqual([f.line for f in again], [f.line for f in faults])
    with self.assertRaisesRegex(ValueError, "--kinds 'zon'.*'zone'"):
      draw("zon")

  def test_nodes_that_are_slow_for_a_while(self):
    faults = random_kills.make_random_kills(
        *(3,), seed=0, num_steps=20, num_pipelines=2, num_stages=2, kinds=("slow",)
    )
    self.assertEqual([f.kind for f in faults], ["slow"] * 3)
    for fault, later in itertools.pairwise(faults):
      self.assertLess(fault.step, fault.slow.until)
      self.assertLessEqual(fault.slow.until, later.step)
    text = faults_lib.render(faults)
    again = faults_lib.parse_faults(text, source="random")
    self.assertEqual(again, faults)

  def test_the_seed_decides(self):
    sizes = {"num_steps": 100, "num_pipelines": 2, "num_stages": 4}
    first, same, other = (
        random_kills.make_random_kills(5, seed=seed, **sizes) for seed in (1, 1, 2)
    )
    self.assertEqual(first, same)
    self.assertNotEqual(first, other)

  @parameterized.parameters((0, 10, "at least 1, got 0"), (3, 6, "at least 7 steps, got"))
  def test_refused(self, num_kills, num_steps, message):
    with self.assertRaisesRegex(ValueError, message):
      random_kills.make_random_kills(
          num_kills, seed=0, num_steps=num_steps, num_pipelines=1, num_stages=2
      )
