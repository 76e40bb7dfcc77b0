"""Which deaths the sweep tries."""

from absl.testing import absltest, parameterized

from bamboo_jax.verify import cases

# Two pipelines of four stages; the first node of the second has two turns.
PLACES = [(pipeline, stage) for pipeline in range(2) for stage in range(4)]
STEPS = cases.Steps(order=(*PLACES, (1, 0), *PLACES[::-1]), depths=(4, 4))


def draw(kind, steps=STEPS, seed=0):
  return cases.draw_deaths(kind, steps, num_cases=40, seed=seed)


def place_of(fault):
  return tuple(fault.place)


class SingleDeathsTest(absltest.TestCase):

  def test_one_pipeline_of_two_stages(self):
    steps = cases.Steps(order=((0, 0), (0, 1), (0, 0), (0, 0)), depths=(2,))
    phases = ["compute", "ties", "reduce", "norm", "refresh", "vote", "apply"]
    self.assertEqual(
        [str(case) for case in cases.single_deaths(steps, every=2)],
        [f"1,0/0,{at},kill" for at in (0, 2, *phases)]
        + [f"1,0/1,{at},kill" for at in (0, *phases)],
    )


class DrawDeathsTest(parameterized.TestCase):

  @parameterized.parameters(*cases.KINDS)
  def test_depends_on_the_seed_only(self, kind):
    self.assertEqual(draw(kind), draw(kind))
    self.assertNotEqual(draw(kind), draw(kind, seed=1))
    self.assertLen(draw(kind), 40)

  @parameterized.parameters(
      ("pair", 1, True), ("neighbours", 1, False), ("second", 1, True), ("two_stages", 2, False)
  )
  def test_two_deaths(self, kind, last_step, is_apart):
    for case in draw(kind):
      first, second = case.faults
      self.assertEqual((first.step, second.step, case.num_steps), (1, last_step, last_step + 1))
      self.assertEqual(STEPS.is_apart(place_of(first), place_of(second)), is_apart)
      self.assertEqual(place_of(first) == place_of(second), kind == "two_stages")

  def test_second_has_more_to_do_when_the_first_dies(self):
    for case in draw("second"):
      first, second = case.faults
      turns = [k for k, p in enumerate(STEPS.order) if p == place_of(first)]
      done = STEPS.order[: turns[first.at]].count(place_of(second))
      self.assertGreater(second.at, done)

  @parameterized.named_parameters(
      ("same_pipeline", (0, 1), (0, 3), True),
      ("shadow", (0, 1), (0, 0), False),
      ("last_and_first", (1, 3), (1, 0), False),
      ("itself", (1, 3), (1, 3), False),
      ("other_pipeline", (0, 2), (1, 2), True),
  )
  def test_is_apart(self, first, second, expected):
    self.assertEqual(STEPS.is_apart(first, second), expected)
    self.assertEqual(STEPS.is_apart(second, first), expected)

  @parameterized.parameters("pair", "second")
  def test_too_few_nodes(self, kind):
    steps = cases.Steps(order=((0, 0), (0, 1), (0, 2)), depths=(3,))
    self.assertEmpty(draw(kind, steps))
