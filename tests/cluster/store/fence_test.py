"""Who may write to the folder of a run."""

import errno
import json
import os
import pathlib
import tempfile
import time
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.base import files
from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import fence as fence_lib
from tests.simulation import store as fake_store

Claim = fence_lib.Claim


class FenceTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "run" / "fence.json"
    self.fences = fence_lib.Fence(self.path.parent), fake_store.Fence()

  def test_the_first_claims_it(self):
    for fence in self.fences:
      self.assertEqual(fence.read(), (None, 0))
      self.assertTrue(fence.create("a"))
      self.assertFalse(fence.create("b"))
      claim, before = fence.read()
      self.assertEqual(claim, Claim("a"))
      fence.beat()
      self.assertGreater(fence.read()[1], before)
      fence.replace("b")
      self.assertEqual(fence.read()[0], Claim("b"))

  def test_an_earlier_life_is_not_put_over_a_later_one(self):
    for fence in self.fences:
      fence.begin(Claim("a", 3))  # Somebody has removed the claim.
      for epoch, want in ((2, 3), (7, 7), (5, 7)):
        fence.begin(Claim("a", epoch))
        self.assertEqual(fence.read()[0], Claim("a", want))
      fence.replace("b")
      fence.begin(Claim("a", 9))
      self.assertEqual(fence.read()[0], Claim("b"))

  def test_a_later_life_begins_while_an_earlier_one_is_about_to(self):
    claim_view = self.fences[0].claim_view

    def claim_late(stamp, life):
      with mock.patch.object(self.fences[0], "claim_view", claim_view):
        self.fences[0].begin(Claim("a", 7))
      claim_view(stamp, life)

    with mock.patch.object(self.fences[0], "claim_view", claim_late):
      self.fences[0].begin(Claim("a", 5))
    self.assertEqual(self.fences[0].read()[0], Claim("a", 7))

  def test_there_is_one_view_of_each_number(self):
    view = lambda number, why: views.View(number, (), why)
    for fence in self.fences:
      self.assertEqual(fence.views_after("a", 0), [])
      first = fence.claim_view("a", view(1, "first"))
      self.assertEqual(first, view(1, "first"))
      self.assertEqual(fence.claim_view("a", view(1, "second")), first)
      self.assertEqual(fence.claim_view("b", view(1, "b")), view(1, "b"))
      for number in (2, 3, 5):
        fence.claim_view("a", view(number, "next"))
      found = [v.number for v in fence.views_after("a", 1)]
      self.assertEqual(found, [2, 3])
    damaged = self.path.parent / "views" / "a.4.json"
    damaged.write_text("{")
    with self.assertRaisesRegex(OSError, "a.4.json is damaged"):
      self.fences[0].views_after("a", 1)
    self.fences[0].clear((None, 0), time.monotonic())
    self.assertEqual(self.fences[0].views_after("a", 0), [])

  def test_nobody_sees_half_a_claim(self):
    link, seen = os.link, []

    def read_first(source, path):
      seen.append(json.loads(pathlib.Path(source).read_text())["stamp"])
      self.assertFalse(self.path.exists())
      link(source, path)

    with mock.patch.object(os, "link", read_first):
      self.fences[0].create("a")
    self.assertEqual(seen, ["a"])
    self.assertEqual(
        [p.name for p in self.path.parent.iterdir()], [self.path.name]
    )

  def test_one_that_was_not_written_to_its_end_is_of_nobody(self):
    self.path.parent.mkdir()
    self.path.touch()
    self.assertEqual(self.fences[0].read()[0], Claim(""))

  @parameterized.parameters(
      (None, "another run"),
      (Claim("b", 2), "another run"),
      (Claim("a", 3), "began anew in view 3"),
      (Claim("a", 2), None),
      (Claim("a", 1), None),
  )
  def test_who_may_write(self, there, refused):
    fence = self.fences[0]
    if there is not None:
      fence.begin(there)
    if refused is None:
      fence_lib.check(fence, Claim("a", 2))
      return
    with self.assertRaisesRegex(base.FencedError, refused):
      fence_lib.check(fence, Claim("a", 2))

  def test_a_folder_that_gives_errors_for_a_while_ends_no_worker(self):
    fence, error = self.fences[0], OSError(errno.EIO, "Input/output error")
    fence.begin(Claim("a", 2))
    answers = [error, error, fence.read(), error]
    with (
        mock.patch.object(fence, "read", side_effect=answers) as read,
        mock.patch.object(files, "_PATIENCE_SECS", 0.3),
    ):
      fence_lib.check(fence, Claim("a", 2))
      self.assertEqual(read.call_count, 3)
      read.side_effect = error
      with self.assertRaisesRegex(OSError, "Input/output error"):
        fence_lib.check(fence, Claim("a", 2))
    self.assertGreater(read.call_count, 3)
