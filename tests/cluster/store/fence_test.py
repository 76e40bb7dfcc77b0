"""Who may write to the folder of a run."""

import errno
import json
import os
import pathlib
import stat
import tempfile
import time
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.base import files
from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import fence as fence_lib
from tests import members
from tests.explorer import share as share_lib

Claim = fence_lib.Claim


class FenceTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "run" / "fence.json"
    self.fences = (
        fence_lib.Fence(self.path.parent),
        share_lib.SimulatedFence(share_lib.SharedFiles()),
    )

  def test_the_first_claims_it(self):
    for fence in self.fences:
      self.assertEqual(fence.read(), (None, 0))
      self.assertTrue(fence.create("a"))
      self.assertFalse(fence.create("b"))
      claim, before = fence.read()
      self.assertEqual(claim, Claim("a"))
      fence.beat("a")
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
    for fence in self.fences:
      create = fence.folder.create

      def create_late(name, text, *, fence=fence, create=create):
        if "lives" in name:
          with mock.patch.object(fence.folder, "create", create):
            fence.begin(Claim("a", 7))
        create(name, text)

      with mock.patch.object(fence.folder, "create", create_late):
        fence.begin(Claim("a", 5))
      self.assertEqual(fence.read()[0], Claim("a", 7))

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
    self.fences[0].clear((None, 0), time.monotonic())
    self.assertEqual(self.fences[0].views_after("a", 0), [])

  def make_clocked(self):
    """Returns fences of the same folder whose clock is `self.now`."""
    self.now = 0.0
    fences = [fence_lib.Fence(self.path.parent) for _ in range(2)]
    for fence in fences:
      fence.protocol = fence_lib.FenceProtocol("folder", lambda: self.now)
    return fences

  @parameterized.product(content=("", "{", "[]", "\0" * 50, '{"number": 2}'), number=(1, 2))
  def test_a_damaged_view_blocks_for_a_while_only(self, content, number):
    one, other = self.make_clocked()
    views_of_run = [members.view(1, 0, 1), members.view(2, 0)]
    for view in views_of_run[: number - 1]:
      one.claim_view("a", view)
    path = self.path.parent / "views" / f"a.{number}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    mine = views_of_run[number - 1]
    for self.now in (0.0, fence_lib.VOID_SECS - 0.1):
      with self.assertRaisesRegex(OSError, f"folder/views/a.{number}.json is "):
        one.claim_view("a", mine)
    self.now = fence_lib.VOID_SECS
    void = one.claim_view("a", mine)
    before = views_of_run[0] if number == 2 else views.EMPTY
    self.assertEqual(void, views.void(before))
    # Others need not wait, as it is in the folder; and they agree.
    self.assertEqual(other.views_after("a", number - 1), [void])
    self.assertEqual(other.claim_view("a", mine), void)
    later = members.view(number + 1, 1)
    self.assertEqual(other.claim_view("a", later), later)
    self.assertEqual(one.views_after("a", number - 1), [void, later])

  @parameterized.product(failure=("EIO", "EISDIR"), number=(1, 2), is_folder_away=(False, True))
  def test_a_view_that_cannot_be_opened_is_damaged(self, failure, number, is_folder_away):
    one, other = self.make_clocked()
    views_of_run = [members.view(1, 0, 1), members.view(2, 0)]
    for view in views_of_run[: number - 1]:
      one.claim_view("a", view)
    path = self.path.parent / "views" / f"a.{number}.json"
    path.mkdir(parents=True)
    read = one.folder.read

    def fail(name):
      if name.endswith(path.name) or is_folder_away:
        raise OSError(getattr(errno, failure), "cannot be read", name)
      return read(name)

    mine = views_of_run[number - 1]
    with mock.patch.object(one.folder, "read", fail):
      for self.now in (0.0, fence_lib.VOID_SECS - 0.1):
        with self.assertRaisesRegex(OSError, "cannot be read"):
          one.claim_view("a", mine)
      self.now = fence_lib.VOID_SECS
      if is_folder_away:
        with self.assertRaisesRegex(OSError, "cannot be read"):
          one.claim_view("a", mine)
        return
      void = one.claim_view("a", mine)
    before = views_of_run[0] if number == 2 else views.EMPTY
    self.assertEqual(void, views.void(before))
    self.assertEqual(other.views_after("a", number - 1), [void])

  def test_an_error_that_passes_is_no_damage(self):
    one, _ = self.make_clocked()
    first = one.claim_view("a", members.view(1, 0, 1))
    error = OSError(errno.EIO, "Input/output error")
    answers = [error, None, None]  # Of the view, the fence, and an attempt.
    for self.now in (0.0, 2 * fence_lib.VOID_SECS):
      with mock.patch.object(one.folder, "read", side_effect=answers):
        with self.assertRaisesRegex(OSError, "Input/output"):
          one.views_after("a")
      self.assertEqual(one.views_after("a"), [first])

  def test_views_before_a_damaged_one_are_read(self):
    one, other = self.make_clocked()
    first = one.claim_view("a", members.view(1, 0, 1))
    (self.path.parent / "views" / "a.2.json").touch()
    self.assertEqual(other.views_after("a", 0), [first])
    read = other.folder.read

    def fail(name):
      if name.endswith("a.2.json"):
        raise OSError("Input/output error")
      return read(name)

    with mock.patch.object(other.folder, "read", fail):
      with self.assertRaisesRegex(OSError, "Input/output"):
        other.views_after("a", 0)

  def test_an_attempt_may_be_damaged_too(self):
    one, other = self.make_clocked()
    for name in ("a.1.json", "a.1.1.json"):
      path = self.path.parent / "views" / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.touch()
    with self.assertRaisesRegex(OSError, "a.1.1.json is damaged"):
      one.views_after("a", 0)
    self.now = fence_lib.VOID_SECS
    found = one.views_after("a", 0)
    self.assertEqual(found, [views.void(views.EMPTY)])
    self.assertEqual(other.views_after("a", 0), found)

  def test_a_life_that_is_damaged_shuts_nobody_out(self):
    fence, _ = self.make_clocked()
    fence.begin(Claim("a", 3))
    (self.path.parent / "views" / "a.lives.2.json").touch()
    with self.assertRaisesRegex(OSError, "a.lives.2.json is damaged"):
      fence.begin(Claim("a", 5))
    self.assertEqual(fence.read()[0], Claim("a", 3))
    self.now = fence_lib.VOID_SECS
    fence.begin(Claim("a", 5))
    self.assertEqual(fence.read()[0], Claim("a", 5))

  def test_content_is_on_disk_before_the_name_and_then_the_name(self):
    done, content = [], json.dumps({"stamp": "a", "epoch": 0})
    link, fsync = os.link, os.fsync

    def note_link(source, path):
      self.assertEqual(pathlib.Path(source).read_text(), content)
      self.assertFalse(self.path.exists())
      link(source, path)
      done.append(f"link {pathlib.Path(path).name}")

    def note_fsync(fd):
      fsync(fd)
      is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
      size = os.fstat(fd).st_size
      done.append("fsync folder" if is_folder else f"fsync {size}")

    with mock.patch.object(os, "link", note_link), mock.patch.object(os, "fsync", note_fsync):
      self.fences[0].create("a")
    self.assertEqual(done, [f"fsync {len(content)}", "link fence.json", "fsync folder"])
    self.assertEqual([p.name for p in self.path.parent.iterdir()], [self.path.name])

  def test_a_full_disk_is_said_with_the_view_that_waits_for_room(self):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch.object(os, "fsync", side_effect=full):
      with self.assertRaisesRegex(OSError, "No space left on device: '.*/views/a.1.json'"):
        self.fences[0].claim_view("a", members.view(1, 0))
    self.assertEmpty([*(self.path.parent / "views").iterdir()])

  def test_an_answer_may_be_lost(self):
    fence = self.fences[1]
    create = fence.folder.create

    def lose(name, text):
      create(name, text)
      raise OSError("no answer.")

    for act, want in (
        (lambda: fence.create("a"), True),
        (lambda: fence.claim_view("a", members.view(1, 0)), members.view(1, 0)),
    ):
      with mock.patch.object(fence.folder, "create", lose):
        self.assertRaises(OSError, act)
      self.assertEqual(act(), want)

  def test_a_view_that_is_not_there_after_it_was_created(self):
    with mock.patch.object(self.fences[1].folder, "read", lambda name: None):
      with self.assertRaisesRegex(OSError, "a.1.json is not there right after"):
        self.fences[1].claim_view("a", members.view(1, 0))

  def test_one_that_was_not_written_to_its_end_is_of_nobody(self):
    self.path.parent.mkdir()
    self.path.touch()
    self.assertEqual(self.fences[0].read()[0], Claim(""))

  @parameterized.parameters(
      (Claim("b", 2), "another run"),
      (Claim("a", 3), "restarted in view 3"),
      (Claim("a", 2), None),
      (Claim("a", 1), None),
  )
  def test_who_may_write(self, there, refused):
    fence = self.fences[0]
    fence.begin(there)
    if refused is None:
      fence_lib.check(fence, "a", 2)
      return
    with self.assertRaisesRegex(base.FencedError, refused):
      fence_lib.check(fence, "a", 2)

  def test_a_claim_that_is_missing_is_not_of_another_run(self):
    fence = self.fences[0]
    fence.begin(Claim("a", 2))
    found = fence.read()
    answers = [fence_lib.Found(None, 0), found]
    with mock.patch.object(fence, "read", side_effect=answers):
      fence_lib.check(fence, "a", 2)  # The folder was away for a moment.
    fence.remove()
    with mock.patch.object(files, "_PATIENCE_SECS", 0.0):
      with self.assertRaisesRegex(OSError, "There is no fence.json in the "):
        fence_lib.check(fence, "a", 2)

  @parameterized.parameters((1, Claim("a", 2)), (0, None))
  def test_members_restore_a_claim_only_beside_their_views(self, num_views, restored):
    for fence in self.fences:
      if num_views:
        fence.begin(Claim("a", 2))
        fence.claim_view("a", members.view(1, 0))
      if isinstance(fence.folder, share_lib.SharedFiles):
        fence.folder._files.pop("fence.json", None)
      else:
        fence.remove()
      if restored is None:
        with self.assertRaises(FileNotFoundError):
          fence.beat("a")
      else:
        fence.beat("a")
      self.assertEqual(fence.read().claim, restored)

  def test_a_folder_that_gives_errors_for_a_while_ends_no_worker(self):
    fence, error = self.fences[0], OSError(errno.EIO, "Input/output error")
    fence.begin(Claim("a", 2))
    answers = [error, error, fence.read(), error]
    with (
        mock.patch.object(fence, "read", side_effect=answers) as read,
        mock.patch.object(files, "_PATIENCE_SECS", 0.3),
    ):
      fence_lib.check(fence, "a", 2)
      self.assertEqual(read.call_count, 3)
      read.side_effect = error
      with self.assertRaisesRegex(OSError, "Input/output error"):
        fence_lib.check(fence, "a", 2)
    self.assertGreater(read.call_count, 3)
