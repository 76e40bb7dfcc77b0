"""A newcomer that hears nobody ends no healthy run, however late its records are made.

The judge hangs for all members while it believes that nobody is left; what it
makes then takes effect when they are back, or much later.
"""

import itertools

from absl.testing import parameterized

from tests import samples
from tests.explorer import history, plans

_HANG_SECS = (0.1, 12.0, 20.0)
_LATE_SECS = (0.0, 10.0, 25.0)
_KINDS = ("late", "late_effect")
_CASES = [*itertools.product(_HANG_SECS, _LATE_SECS, (6.2, 25.0), _KINDS, (0, 1))]


def make_plan(seed, *, hang_secs, late_secs, late_at_secs, kind="late", secs=70.0):
  """Returns a plan: n4 comes, and hears no member for `secs`."""
  faults = [
      plans.SimFault(6.0, "apart", ("n4",), secs),
      plans.SimFault(6.0, "join", ("n4",)),
      plans.SimFault(late_at_secs, kind, ("n4",), late_secs),
  ]
  members = tuple(f"n{i}" for i in range(4))
  faults.append(plans.SimFault(9.0, "hang_judge", members, hang_secs))
  return plans.FaultPlan(seed, 4, 0, tuple(faults), no_progress_secs=60.0)


class AskTest(parameterized.TestCase):

  @parameterized.parameters(*samples.draw(_CASES, 12))
  def test_a_healthy_run_goes_on(self, hang_secs, late_secs, late_at_secs, kind, seed):
    plan = make_plan(
        seed, hang_secs=hang_secs, late_secs=late_secs, late_at_secs=late_at_secs, kind=kind
    )
    self.assertEqual(history.explore(plan), [], msg=plan)

  def test_it_asks_and_is_answered_and_no_step_waits(self):
    plan = make_plan(0, hang_secs=0.1, late_secs=0.0, late_at_secs=6.2)
    one = history.ClusterHistory(plan)
    clock, steps = one.world.clock, []
    while clock.now < 70.0:
      steps.append(one.machines["n0"].worker.steps if "n0" in one.machines else 0)
      clock.run(clock.now + 1.0)
    asks = [t for t in one.world.trace if "n4 asks whether any" in t]
    answers = [t for t in one.world.trace if t.endswith(" is alive") and t not in asks]
    self.assertNotEmpty(asks)
    self.assertNotEmpty(answers)
    # It was answered twice or more, and then waits for longer each time.
    numbers = {t.split("View ")[1].split(":")[0] for t in asks}
    self.assertBetween(len(numbers), 1, 3)
    gained = [b - a for a, b in itertools.pairwise(steps[20:])]
    self.assertGreaterEqual(min(gained), 3)

  def test_a_run_of_which_nobody_is_left_begins_anew(self):
    members = [plans.SimFault(9.0, "vanish", (f"n{i}",)) for i in range(4)]
    come = plans.SimFault(9.5, "join", ("n4",))
    plan = plans.FaultPlan(0, 4, 0, (*members, come))
    self.assertEqual(history.explore(plan), [])
