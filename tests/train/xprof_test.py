import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax.train.record import xprof


class XprofTest(parameterized.TestCase):

  @parameterized.parameters("3", "0:2", "4:3", "a:b", "1:2:3", "")
  def test_bad_steps(self, text):
    with self.assertRaisesRegex(ValueError, "such as 3:6"):
      xprof.parse_steps(text)

  def test_steps(self):
    self.assertEqual(xprof.parse_steps("3:6"), range(3, 7))
    self.assertEmpty(xprof.parse_steps(None))

  def test_a_trace_of_these_steps(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    profiler = xprof.Profiler(range(2, 4), folder / "n0")
    found = []
    for step in range(5):
      profiler.note_done(step)
      found.append(len([*folder.rglob("*.xplane.pb")]))
    self.assertEqual(found, [0, 0, 0, 1, 1])
    profiler.note_done(1)
    profiler.stop()  # Training has ended early.
    profiler.stop()
    self.assertNotEmpty([*folder.rglob("*.xplane.pb")])
