"""The command that checks deaths at every cut."""

from absl.testing import parameterized

from tests.launch import commands


def run(*arguments):
  return commands.run("-m", "tests.verify_failover", *arguments)


class VerifyFailoverTest(parameterized.TestCase):

  # Each starts Python, 0.4 s.
  @parameterized.parameters(
      (
          ("--num_stages=2", "--num_microbatches=1", "--modes=lazy,none"),
          [
              "mode=lazy owners=0,1 microbatches=1 victims=1: 7 cuts, 14 deaths"
              ", 0 lost, 8 plans, 0 second deaths, 0 second lost; ",
              "mode=none owners=0,1 microbatches=1 victims=1: 7 cuts, 0 deaths"
              ", 14 lost, 0 plans, 0 second deaths, 0 second lost; ",
          ],
      ),
      (
          (
              "--num_microbatches=8",
              "--modes=eager",
              "--lost_before=1",
              "--num_cuts=5",
              "--victims=2",
          ),
          [
              "mode=eager owners=0,0,2,3 microbatches=8 victims=2: 5 cuts, 0 "
              "deaths, 15 lost, 0 plans, 0 second deaths, 0 second lost; "
          ],
      ),
  )
  def test_counts(self, arguments, want):
    done = run(*arguments)
    self.assertEqual(done.returncode, 0, done.stderr)
    lines = done.stdout.splitlines()
    self.assertLen(lines, len(want))
    for line, start in zip(lines, want, strict=True):
      self.assertStartsWith(line, start)

  @parameterized.parameters(
      ("--victims=5", "--victims must be at most 4, the number of nodes, got 5"),
      ("--lost_before=4", "lost_before must name nodes of .*, got '4'"),
      ("--modes=eagr", "'eagr'; did you mean 'eager'"),
  )
  def test_refuses(self, argument, message):
    done = run(argument)
    self.assertEqual(done.returncode, 2)
    self.assertRegex(done.stderr, f"error: .*{message}")
    self.assertEqual(done.stderr.splitlines()[-1][:7], "error: ")
