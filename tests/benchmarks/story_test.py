"""What is said of two runs, one of which lost nodes."""

import math
import sys
import types
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.benchmarks import story
from bamboo_jax.metrics import progress as progress_lib, summary as summary_lib
from bamboo_jax.report import contents
from tests import folders, run_files
from tests.recovery import durations_test


def step(number, loss, *, ms=100.0, secs=0.0):
  account = {"account": {"secs": secs}}
  return {"step": number, "loss": loss, "step_ms": ms, **account}


def recovery(number, names, *, heirs=("n3",), rung="shadow", wait_secs=0.05):
  at_once = dict.fromkeys(("died_at_secs", "view_at_secs", "agreed_at_secs", "ready_at_secs"), 10.0)
  line = durations_test.RECOVERY | at_once | {"step": number, "event": "recovery", "rung": rung}
  line |= {"nodes": [int(name[1:]) for name in names], "names": [*names], "heirs": [*heirs]}
  line |= {"victims": [f"0/{name[1:]}" for name in names], "reason": "why"}
  line |= {"first_owed_at_secs": wait_secs and 10.0 + wait_secs}
  return line | {"last_owed_at_secs": 10.2, "step_end_at_secs": 10.3}


STEPS = (
    {"step": 0, "event": "start", "account": {"secs": 2.0}},
    step(1, 5.5, ms=9000.0, secs=11.0),  # Compiles.
    step(2, 5.25, ms=200.0, secs=11.25),
    step(3, 5.0, ms=200.0, secs=11.5),
    step(4, 4.5, ms=400.0, secs=12.0),
)
# The third takes 0.5 s longer, with what is done before it begins.
_THIRD = step(3, 5.0, ms=200.0, secs=12.0)
DEATHS = (*STEPS[:3], _THIRD, recovery(3, ["n0"]), STEPS[4])


class StoryTest(parameterized.TestCase):

  def runs(self, *, is_over):
    return [story.Recorded(STEPS, is_over), story.Recorded(DEATHS, is_over)]

  def test_a_line_for_each_step_and_the_deaths_in_it(self):
    rows = story.render_steps(self.runs(is_over=True), after=1, num_steps=4)
    self.assertEqual(
        [text for _, text in rows],
        [
            "     2      5.250000      5.250000",
            "     3      5.000000      5.000000"
            "  n0 (stage 0/0) died; its shadow n3 took over after 50 ms",
            "     4      4.500000      4.500000",
        ],
    )

  def test_a_step_is_shown_once_all_of_it_is_logged(self):
    """Recoveries follow the line of their step."""
    running = self.runs(is_over=False)
    rows = story.render_steps(running, after=0, num_steps=4)
    self.assertEqual([number for number, _ in rows], [1, 2, 3])
    begun = [running[0], story.Recorded()]
    self.assertEmpty(story.render_steps(begun, after=0, num_steps=4))
    nan = story.Recorded([step(1, None)], True)
    rows = story.render_steps([nan, nan], after=0, num_steps=1)
    self.assertEqual(rows, [(1, "     1    not finite    not finite")])

  def test_a_long_run_shows_some_steps_and_all_deaths(self):
    lines = [step(i, 1.0) for i in range(1, 91)]
    runs = [story.Recorded(lines, True), story.Recorded([*lines, recovery(8, ["n1"])], True)]
    rows = story.render_steps(runs, after=0, num_steps=90)
    self.assertEqual([n for n, _ in rows][:4], [3, 6, 8, 9])
    self.assertLen(rows, 31)

  @parameterized.parameters(
      (dict(), "n1 (stage 0/1) died; its shadow n3 took over after 50 ms"),
      (dict(wait_secs=0.0001), "n1 (stage 0/1) died; its shadow n3 took over at once"),
      (dict(wait_secs=None), "n1 (stage 0/1) died; its shadow n3 took over"),
      (dict(rung="reroute"), "n1 (stage 0/1) died; reroute: why"),
      (dict(rung="checkpoint", heirs=()), "n1 (stage 0/1) died; checkpoint: why"),
      (dict(heirs=("n0", "n0")), "n1 (stage 0/1) died; its shadow n0 took over after 50 ms"),
      (
          dict(names=["n1", "n2"]),
          "n1 and n2 (stages 0/1, 0/2) died; their shadows n3 took over after 50 ms",
      ),
  )
  def test_deaths(self, given, expected):
    run = story.Recorded([recovery(1, **{"names": ["n1"]} | given)], True)
    self.assertEqual(story.describe(run.recoveries[0]), expected)

  @parameterized.parameters((0, 13, "8.6"), (4, 5, "7.0"), (2, 1, "6.2"), (1, 0, "6.0"))
  def test_restarts(self, every_steps, num_steps, secs):
    """In steps 3, 5 and 8: after 2, 4 and 7 steps, which 0 repeats all."""
    run = story.Recorded([*STEPS, *(recovery(n, ["n1"]) for n in (3, 5, 8))], True)
    _, line = story.render_costs(story.Recorded(STEPS, True), run, every_steps=every_steps)
    self.assertEndsWith(
        line, f"at least {secs} s lost (3 x 2.0 s to set up, {num_steps} x 0.20 s)."
    )

  def test_costs(self):
    plain, run = self.runs(is_over=True)
    self.assertEqual(
        story.render_costs(plain, run, every_steps=10),
        [
            "1 node died. The step with a death took 0.5 s longer. No step was " "repeated.",
            "Restarts from checkpoints instead, one every 10 steps: 2 steps "
            "repeated, at least 2.4 s lost (1 x 2.0 s to set up, 2 x 0.20 s).",
        ],
    )
    self.assertIn("without checkpoints", story.render_costs(plain, run, every_steps=0)[1])
    self.assertEmpty(story.render_costs(plain, plain, every_steps=10))  # Nobody died.

  @parameterized.parameters(
      ([3, 4], "2 nodes died. The 2 steps with a death took 0.0 s longer in all."),
      ([3, 3], "2 nodes died. The step with a death took 0.5 s longer."),
      ([4], "1 node died. The step with a death took 0.5 s less."),  # The other one was slower.
      ([9], "1 node died."),  # It is not timed.
      ([3], "2 nodes died. Steps after the last checkpoint were repeated.", "checkpoint", "n0 n1"),
  )
  def test_time_of_deaths(self, steps, expected, rung="shadow", names="n0"):
    deaths = [recovery(step, names.split(), rung=rung) for step in steps]
    run = story.Recorded([*STEPS[:3], _THIRD, STEPS[4], *deaths], True)
    plain = story.Recorded(STEPS, True)
    found = story.render_costs(plain, run, every_steps=10)
    kept = " No step was repeated." * (rung == "shadow")
    self.assertEqual(found[0], expected + kept)

  def test_a_control(self):
    """A lost share must change the hash; else the command fails."""
    ended = types.SimpleNamespace(steps=20, state_sha256="a")
    told = dict(step=20, shares=2, state_sha256="b")
    self.assertEqual(
        story.render_control(told, ended),
        "control: step 20 of the first run again without one of its 2 shares "
        "ends in another state, b",
    )
    self.assertEqual(story.render_control(told | {"step": 10}, ended), "")
    with self.assertRaisesRegex(ValueError, "ends in the same state, so equal"):
      story.render_control(told | {"state_sha256": "a"}, ended)

  @parameterized.parameters(
      (dict(), []),
      (dict(state_sha256="b"), ["state_sha256"]),
      (dict(steps=2, samples_seen=8), ["steps", "samples_seen"]),
      (dict(final_loss=None), ["final_loss"]),
      (dict(median_step_secs=math.pi), []),
  )
  def test_differences(self, changed, expected):
    runs = [summary_lib.Summary(**run_files.SUMMARY | changes) for changes in ({}, changed)]
    self.assertEqual(contents.find_differences(*runs), expected)


_TRAINED = ("true",)  # The runs are there already.


class TwinsTest(folders.FolderCase):

  def test_recorded_runs(self):
    run_files.write(self.folder / "plain", STEPS)
    run_files.write(self.folder / "failures", DEATHS)
    with folders.printed() as said:
      runs = story.run_all(self.folder, {"plain": _TRAINED, "failures": _TRAINED}, num_steps=4)
    self.assertEqual([len(run.recoveries) for run in runs], [0, 1])
    lines = said.getvalue().splitlines()
    self.assertLen(lines, 4)
    self.assertEndsWith(lines[2], "n0 (stage 0/0) died; its shadow n3 took over after 50 ms")

  def test_a_run_that_fails_ends_the_other(self):
    fail = "import sys; sys.exit('noise\\nerror: no such flag')"
    codes = {"a": "import time; time.sleep(60)", "b": fail}
    commands = {name: (sys.executable, "-c", code) for name, code in codes.items()}
    message = "'b' ended with exit status 1: no such flag; .* is in .*b.log"
    with self.assertRaisesRegex(ValueError, message):
      story.run_all(self.folder, commands, num_steps=1)

  def test_a_long_start_is_no_silence(self):
    (self.folder / "a.log").write_text("of an earlier run\n")
    wait = "print('pause: 1 of 2 programs are compiled', flush=True)"
    with mock.patch.object(progress_lib.Reminder, "every_secs", -1.0):  # Always.
      with folders.printed() as said:
        story.run_all(self.folder, {"a": (sys.executable, "-c", wait)}, num_steps=1)
    self.assertEqual(said.getvalue().splitlines()[-1], "a: 1 of 2 programs are compiled")
    self.assertNotIn("earlier", said.getvalue())
