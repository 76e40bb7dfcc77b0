"""Sums are the same whoever dies between two segments of a step."""

import itertools
from unittest import mock

from absl.testing import parameterized
import jax
import numpy as np

from tests import samples
from tests.runtime.spmd import pipelines

# Each victim after each number of segments.
_DEATHS = [*itertools.product(range(3), range(5))]


class DeathTest(parameterized.TestCase):

  def test_without_a_death_sums_have_the_bits_of_rows(self):
    # As units are blocks, and every program is compiled alike.
    want = pipelines.make_three().sums_of_rows()
    self.assertLen(want, 2 * len(pipelines.make_three().spec.units))
    self.assertEmpty(pipelines.find_unequal(pipelines.undisturbed(), want))

  def test_programs_of_roles_now_and_after_a_death(self):
    made = pipelines.make_three()
    lines = made.rows.lines
    # Each pipeline at first, after the death of each node, and after one elsewhere.
    self.assertLen(made.programs.jobs(lines), 2 * (1 + 3 + 1))
    self.assertLen(made.programs.jobs([*lines]), 2 * (1 + 1))  # Those of another view.

  def test_sums_in_host_memory_compile_nothing(self):
    """As those that a child has computed."""
    want, made = pipelines.undisturbed(), pipelines.make_three()
    made.begin()
    made.advance()
    for run in made.programs.runs.values():
      on_host = {n: jax.tree.map(np.asarray, run.segments.sums(n)) for n in range(len(run.nodes))}
      self.enterContext(mock.patch.object(run.segments, "sums", on_host.get))
    events = pipelines.count_compilations()
    self.assertEmpty(pipelines.find_unequal(made.sums(), want))
    self.assertEmpty(events)

  @parameterized.parameters(*samples.draw(_DEATHS, 3))
  def test_sums_keep_their_bits(self, victim, num_segments):
    want, made = pipelines.undisturbed(), pipelines.make_three()
    events = pipelines.count_compilations()
    made.begin()
    made.advance(num_segments)
    # The programs that the victim was part of are of no use any more.
    poisoned = RuntimeError("A peer has died.")
    program = made.programs.runs[0].program
    with mock.patch.object(program, "segment", side_effect=poisoned):
      made.die(victim)
      made.advance()
    self.assertEmpty(pipelines.find_unequal(made.sums(), want))
    self.assertEmpty(events)
    if num_segments == 4:  # Backward passes from residuals in host memory.
      kept = [key for n in (0, 1) for key in made.programs.runs[0].table.fetches(n)]
      self.assertGreaterEqual([stage for stage, _ in kept].count(victim), 3)

  def test_shadows_leave_the_head_to_recovery(self):
    made = pipelines.make_three()
    made.begin()
    made.advance()
    run = made.programs.runs[0]
    made.programs.holdings(is_begun=True)
    self.assertNotEmpty([k for k in made.rows.nodes[1].store.saved if k[0] == 2])
    for node, has_loss in ((1, False), (2, True)):  # Shadow and owner.
      sums = run.segments.sums(node)
      self.assertEqual(any(map(jax.numpy.any, jax.tree.leaves(sums.epilogue))), has_loss)

  @parameterized.parameters(
      # Who died in steps before; who dies after which number of segments.
      ([], [(2, 2), (1, 0)], [3, 1, 1, 3]),
      ([2], [(3, 1)], [0, 0, 0, 3]),
      ([1], [(3, 0)], [3, 3, 2, 3]),
      ([1, 0], [(3, 3)], [2, 2, 2, 2]),
  )
  def test_nodes_own_any_number_of_stages(self, dead, deaths, owners):
    made, want = pipelines.make_four()
    with pipelines.quick_compilation():
      made.begin(dead=dead)
      for num_segments, victim in deaths:
        made.advance(num_segments)
        made.die(victim)
      made.advance()
    self.assertEqual(made.programs.runs[0].owners, (*owners,))
    self.assertEmpty(pipelines.find_unequal(made.sums(), want))
