"""The steps that are traced for XProf, and the files of a trace."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp

from bamboo_jax.config import config as config_lib
from bamboo_jax.training.record import step_traces
from tests import folders


class XprofTest(folders.FolderCase):

  @parameterized.parameters((None, []), ("3:6", [3, 4, 5, 6]), ("1:1", [1]), ("12:13", [12, 13]))
  def test_steps(self, text, expected):
    section = config_lib.MetricsSection(profile_steps=text)
    self.assertEqual([*section.profiled], expected)

  @parameterized.parameters("", "3", "0:2", "6:3", "3:6:9", "a:b", "-1:2")
  def test_refuses(self, text):
    with self.assertRaisesRegex(ValueError, f"such as 3:6, got {text!r}"):
      config_lib.MetricsSection(profile_steps=text)

  # Steps from 1 on; a run that is over, or stops, ends the trace.
  @parameterized.parameters((1, 2, 4), (2, 3, 4), (3, 9, 4), (5, 6, 0))
  def test_a_trace_has_the_steps(self, first, last, num_done):
    profiler = step_traces.Profiler(range(first, last + 1), self.folder)
    add = jax.jit(lambda x: x + 1)
    for step in range(num_done + 1):
      profiler.note_done(step)
      has_begun = first <= num_done and step + 1 >= first
      with jax.profiler.TraceAnnotation(f"step {step + 1}"):
        add(jnp.ones(3)).block_until_ready()
    profiler.stop()
    profiler.stop()  # Of a trace that is over.
    files = [*self.folder.rglob("*.xplane.pb")]
    self.assertLen(files, int(has_begun))
    content = files[0].read_bytes() if files else b""
    found = [s for s in range(1, 9) if f"step {s}".encode() in content]
    traced = range(first, min(last, num_done + 1) + 1)
    self.assertEqual(found, [*traced] if has_begun else [])
