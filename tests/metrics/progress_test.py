import contextlib
import io
import os
import termios
import threading
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tqdm

from bamboo_jax.metrics import progress as progress_lib


class _Listener(io.StringIO):
  """A stream that tells when something was written."""

  def __init__(self):
    super().__init__()
    self.has_text = threading.Event()

  def flush(self):
    self.has_text.set()


class ProgressTest(parameterized.TestCase):

  def test_a_pause_is_explained_once_it_lasts(self):
    stream = _Listener()
    with progress_lib.ProgressLine(num_steps=2, stream=stream, pause_secs=0.01) as shown:
      shown.explain("n2 takes stage 0/1")
      self.assertTrue(stream.has_text.wait(20.0))
    self.assertEqual(stream.getvalue(), "pause: n2 takes stage 0/1\n")

  def test_a_long_pause_is_explained_again_and_again(self):
    said, is_enough = [], threading.Event()

    def show(text):
      said.append(text)
      if len(said) > 2:
        is_enough.set()

    reminder = progress_lib.Reminder(show, "why", 0.0)
    reminder.every_secs = 0.001
    reminder.start()
    self.assertTrue(is_enough.wait(20.0))
    reminder.cancel()
    reminder.join(20.0)
    self.assertEqual(said[:3], ["why", "why (0 s so far)", "why (0 s so far)"])

  @parameterized.parameters((0.0, "", "importing JAX\n"), (600.0, "", ""), (0.0, "1", ""))
  def test_a_command_says_what_is_long(self, after_secs, quiet, want):
    self.enterContext(mock.patch.dict(os.environ, {"BAMBOO_JAX_QUIET": quiet}))
    self.enterContext(mock.patch.object(progress_lib, "_WAIT_SECS", after_secs))
    stream = _Listener()
    before = {*threading.enumerate()}
    with contextlib.redirect_stderr(stream), progress_lib.waiting("importing JAX"):
      self.assertTrue(not want or stream.has_text.wait(20.0))
    self.assertEqual(stream.getvalue(), want)
    self.assertEmpty({*threading.enumerate()} - before)  # Else it could not be forked.

  def test_a_narrow_terminal_without_colours(self):
    self.enterContext(mock.patch.dict(os.environ, NO_COLOR="1"))
    terminal, file = map(os.fdopen, os.openpty(), ("rb", "w"))
    self.enterContext(terminal)
    termios.tcsetwinsize(terminal, (20, 40))
    with file, progress_lib.ProgressLine(num_steps=8, stream=file) as shown:
      shown.show_text("a note")
      shown.show_step(5, {"loss": 3.5, "learning_rate": 1e-3, "tokens_per_sec": 4000.0})
    text = b""
    with contextlib.suppress(OSError):  # The end, as the other side is closed.
      while part := os.read(terminal.fileno(), 4096):
        text += part
    self.assertIn(b"0/8", text)
    self.assertIn(b"a note\r\n", text)
    *lines, last, _ = text.decode().split("\r")
    for line in (*lines, last):
      self.assertLessEqual(len(line), 40)
      self.assertNotIn("\x1b", line)
    self.assertStartsWith(last, "5/8")
    self.assertIn("loss=3.5000", last)
    self.assertEqual(tqdm.tqdm.monitor_interval, 0)  # A thread: no node could be forked.

  @parameterized.parameters(
      ("loss", 3.41234, "3.4123"),
      ("eval_loss", np.float32(3.0), "3.0000"),
      ("loss", float("nan"), "nan"),
      ("tokens_per_sec", 1234.4, "1234"),
      ("bubble_pct", 31.24, "31.2"),
      ("step_ms", 210.06, "210.1"),
      ("pause_secs", 0.304, "0.30"),
      ("learning_rate", 3e-4, "0.0003"),
      ("samples", np.int64(12345678), "12345678"),
      ("rung", "shadow", "shadow"),
  )
  def test_render_line(self, name, value, want):
    self.assertEqual(progress_lib.render_line({name: value}), f"{name}={want}")

  def test_a_full_disk_ends_no_training(self):
    full = open("/dev/full", "w")
    shown = progress_lib.ProgressLine(num_steps=2, stream=full)
    shown.show_step(1, {"loss": 2.0})
    shown.show_text("a line")
    with self.assertRaises(OSError):  # It tries again.
      full.close()

  def test_measured_beside_planned(self):
    found = dict(mode="eager", overhead=0.0512, coverage=0.75)
    planned = dict(planned_overhead=0.06, planned_coverage=0.7)
    self.assertEqual(
        progress_lib.render_redundancy(found | planned),
        "redundancy=eager overhead_pct=5.1 planned_overhead_pct=6.0"
        " coverage_pct=75.0 planned_coverage_pct=70.0",
    )
