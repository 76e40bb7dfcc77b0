"""What is compiled beside training is there in time, or its error is told."""

from concurrent import futures
import functools
import threading
import time
from unittest import mock

from absl.testing import absltest

from bamboo_jax import base
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.training import background_compiler, cohort as cohort_lib, failures as failures_lib
from tests import layouts


class State:
  """The part of a `run_state.RunState` that the compiler looks at."""

  layout = layout_lib.Layout()

  def plan(self, view, nodes):
    del view, nodes
    return mock.Mock(layout=self.layout)


class BackgroundCompilerTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.cohort = cohort_lib.LocalCohort(2)
    self.state = State()
    self.state.cohort, self.state.engine = self.cohort, mock.Mock()
    executor = mock.Mock()
    executor.jobs = lambda lines: [*self.jobs]
    self.compiler = background_compiler.BackgroundCompiler(self.state, executor)
    self.addCleanup(self.compiler.close)
    self.jobs = []
    self.failures = failures_lib.Failures()
    self.fail = functools.partial(int, "no such kernel")  # No line of ours.

  def fail_in_code_of_the_user(self):
    raise NotImplementedError("no such layer")

  def test_an_error_is_told_and_not_forgotten_for_a_later_job(self):
    for jobs in ([self.fail], []):
      self.jobs = jobs
      self.compiler.follow()
      self.state.layout = mock.Mock()
    self.compiler.wait()
    with self.assertRaisesRegex(base.CompilationError, "no such kernel"):
      self.compiler.newest_ready(self.failures)

  def test_an_error_of_the_user_is_told_with_the_vote(self):
    self.jobs = [self.fail_in_code_of_the_user]
    self.compiler.follow()
    self.compiler.wait()
    ready = self.compiler.newest_ready(self.failures)
    self.assertEqual(ready, self.cohort.view.number)
    self.assertRegex(
        self.failures.first.text,
        r"background_compiler_test.py:\d+: NotImplementedError: no such layer",
    )

  def test_pauses_leave_training_the_processor(self):
    def work():
      end_secs = time.thread_time() + 0.01
      while time.thread_time() < end_secs:
        pass

    self.state.layout = mock.Mock()
    self.enterContext(mock.patch.object(background_compiler, "_PAUSES", 1e6))
    self.compiler.follow()  # The start of a run.
    self.compiler.wait()
    self.state.layout = mock.Mock()
    self.jobs = [work, work]
    self.compiler.follow()
    done, _ = futures.wait([self.compiler._last], timeout=0.5)
    self.assertEmpty(done)
    waiting = threading.Thread(target=self.compiler.wait, daemon=True)
    waiting.start()
    waiting.join(timeout=60)  # Whoever waits for the jobs ends the pauses.
    self.assertFalse(waiting.is_alive())

  def test_a_newer_view_is_ready_once_it_is_compiled(self):
    go_on = threading.Event()
    self.jobs = [go_on.wait]
    self.cohort._change(come=1)
    self.assertEqual(self.compiler.newest_ready(self.failures), self.cohort.view.number)
    go_on.set()
    self.compiler.wait()
    self.assertEqual(self.compiler.newest_ready(self.failures), self.cohort.newest.number)

  def test_new_roles_are_compiled_once(self):
    ran = []
    self.jobs = [lambda: ran.append(self.state.layout)]
    pair = [layouts.lay_out((0, node)) for node in (1, 0)]
    for layout in (pair[0], pair[0], pair[1], pair[1]):
      self.state.layout = layout
      self.compiler.follow()
    self.compiler.wait()
    self.assertEqual(ran, pair)

  def test_closing_drops_what_has_not_begun(self):
    ran, begun, go_on = [], threading.Event(), threading.Event()

    def first():
      begun.set()
      go_on.wait()

    self.jobs = [first, lambda: ran.append(1)]
    self.compiler.follow()
    begun.wait()
    closing = threading.Thread(target=self.compiler.close)
    closing.start()
    while not self.compiler._is_closed:
      pass
    go_on.set()
    closing.join()
    self.assertEmpty(ran)
