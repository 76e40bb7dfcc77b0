"""A process that trains alone, and others that want its folder."""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest

from bamboo_jax import base
from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import fence as fence_lib, tenure

_HOLD = """
import sys, time
from bamboo_jax.cluster.store import fence, tenure
folder = sys.argv[1]
with tenure.hold(folder, fence.Fence(folder).read(), time.monotonic()):
  print(flush=True)
  sys.stdin.read()
"""


class TenureTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.object(fence_lib, "BEAT_SECS", 0.4))
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)
    self.fence = fence_lib.Fence(folder)

  def hold(self):
    return tenure.hold(self.folder, self.fence.read(), time.monotonic())

  def test_it_is_seen_to_live_until_it_ends(self):
    with self.hold() as check:
      check()
      claim, before = self.fence.read()
      self.assertTrue(tenure.is_alone(claim))
      self.assertFalse(self.fence.create("agent"))
      end_secs = time.monotonic() + 20
      while self.fence.read()[1] == before and time.monotonic() < end_secs:
        pass
      self.assertGreater(self.fence.read()[1], before)
      with self.assertRaisesRegex(ValueError, "Members of a run are alive in "):
        with self.hold():
          pass
      check()
    self.assertEqual(self.fence.read(), (None, 0))

  def test_it_is_told_that_others_have_taken_the_folder(self):
    with self.hold() as check:
      self.fence.replace("agent")
      with self.assertRaisesRegex(base.FencedError, "belongs to another run"):
        check()
    self.assertEqual(self.fence.read()[0], fence_lib.Claim("agent"))

  def test_it_restores_a_claim_that_was_removed(self):
    with self.hold() as check:
      claim = self.fence.read().claim
      self.fence.remove()
      check()  # Waits until it is there again.
      self.assertEqual(self.fence.read().claim, claim)
      away = self.folder.rename(f"{self.folder}_away")
      back = lambda _: away.exists() and away.rename(self.folder)
      with mock.patch.object(time, "sleep", back):
        check()  # The folder is away until the second look.
    self.assertEqual(self.fence.read(), (None, 0))

  def test_it_answers_whether_it_is_alive(self):
    with self.hold():
      stamp = self.fence.read().claim.stamp
      asked = self.fence.claim_view(stamp, views.ask(views.EMPTY, "n0"))
      end_secs = time.monotonic() + 20
      found = []
      while not found and time.monotonic() < end_secs:
        found = self.fence.views_after(stamp, asked.number)
      self.assertEqual([v.text for v in found], ["bamboo train is alive"])

  def test_it_shows_no_sign_of_life_for_another_run(self):
    with self.hold():
      self.fence.replace("agent")
      _, before = self.fence.read()
      for thread in threading.enumerate():
        if thread.name == "fence":
          thread.join(20)
          self.assertFalse(thread.is_alive())
      self.assertEqual(self.fence.read()[1], before)

  def test_of_two_at_once_one_begins(self):
    found = self.fence.read()
    with contextlib.ExitStack() as stack:
      hold = lambda: tenure.hold(self.folder, found, time.monotonic())
      clear = fence_lib.Fence.clear

      def clear_late(*arguments):
        """Lets another process begin between this and the claim."""
        clear(*arguments)
        with mock.patch.object(fence_lib.Fence, "clear", clear):
          stack.enter_context(hold())

      with mock.patch.object(fence_lib.Fence, "clear", clear_late):
        with self.assertRaisesRegex(ValueError, "has just started in"):
          stack.enter_context(hold())
      self.assertTrue(tenure.is_alone(self.fence.read()[0]))

  def test_one_that_was_killed_keeps_nobody_waiting_for_long(self):
    command = [sys.executable, "-c", _HOLD, str(self.folder)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
    self.addCleanup(process.communicate)
    self.addCleanup(process.kill)
    process.stdout.readline()
    process.kill()
    process.wait()
    self.assertTrue(tenure.is_alone(self.fence.read()[0]))
    begin_secs = time.monotonic()
    with self.hold() as check:
      check()
    self.assertLess(time.monotonic() - begin_secs, 0.4 + 2.0)
