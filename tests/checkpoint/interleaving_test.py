"""Processes that complete, remove and set aside checkpoints in one folder.

The first is stopped before each of its calls of the file system, in turn, while
another does all that it does.
"""

import contextlib
import itertools
import os
import pathlib
import shutil
import sys
import tempfile

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.checkpoint import folder as folder_lib, manifest as manifest_lib

_EVENTS = ("open", "os.", "shutil.")
_hook = None  # Called before each of these; see `sys.addaudithook`.


@sys.addaudithook
def _pass_on(event, args):
  if _hook is not None and event.startswith(_EVENTS):
    _hook(event, args)


@contextlib.contextmanager
def _hooked(hook):
  global _hook
  before, _hook = _hook, hook
  try:
    yield
  finally:
    _hook = before


class _Process:
  """Writes checkpoints; `is_fenced` once others may write instead."""

  def __init__(self, root, *, keep=1):
    self.is_fenced = False
    self.folder = folder_lib.CheckpointFolder(root, keep=keep, check_fence=self._check_fence)

  def write(self, step, view):
    """Writes a part with a file, which says the step."""
    item = self.folder.path / f"{step}.{view}.tmp" / "node0"
    item.mkdir(parents=True)
    (item / "data").write_text(f"{step}")

  def finish(self, step, view):
    files = {"node0/data": len(f"{step}")}
    whole = manifest_lib.Manifest(step, {"seed": 7}, {}, files)
    self.folder.finish(f"{step}.{view}", whole)

  def save(self, step, view):
    self.folder.remove_unfinished(f"{step}.{view}")
    self.write(step, view)
    self.finish(step, view)

  def read(self, step):
    with contextlib.suppress(base.DamagedCheckpointError):
      self.folder.read(step, {}, [])

  def _check_fence(self):
    if self.is_fenced:
      raise base.FencedError("The workdir is that of another run now.")


def _cut(checkpoint):
  (checkpoint / "manifest.json").write_text("{")


class InterleavingTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    temp = self.enterContext(tempfile.TemporaryDirectory())
    self.base = pathlib.Path(temp).resolve()
    self.root = self.base / "checkpoints"

  def complete(self):
    """Returns the steps of complete checkpoints; changes nothing."""
    found = []
    for path in self.root.iterdir():
      with contextlib.suppress(base.CheckpointError):
        manifest_lib.read_manifest(path)
        found.append(path.name)
    return sorted(map(int, found))

  def assert_always_one(self, prepare, act, other):
    """Runs `act`, and `other` before one of its calls: each in turn.

    `prepare` fills a folder. `act` and `other` get what it returns. There must
    be a complete checkpoint before each call of both, and at the end.
    """
    for stop in itertools.count():
      self.root = self.base / str(stop)
      given = prepare()
      num_calls, lost, is_stopped = 0, [], False

      def hook(event, args, stop=stop, given=given, lost=lost):
        nonlocal num_calls, is_stopped
        with _hooked(None):
          if not self.complete():
            lost.append((event, args))
        if not is_stopped:
          num_calls += 1
          if num_calls == stop + 1:
            is_stopped = True
            other(*given)
            is_stopped = False

      with self.subTest(stop=stop):
        with _hooked(hook), contextlib.suppress(OSError, base.FencedError):
          act(*given)
        self.assertEmpty(lost)
        self.assertNotEmpty(self.complete())
        names = [p.name for p in self.root.iterdir() if p.name.isdecimal()]
        self.assertCountEqual(map(int, names), self.complete())
        for step in self.complete():
          data = self.root / f"{step}" / "node0" / "data"
          self.assertEqual(data.read_text(), f"{step}")
      if num_calls <= stop:
        self.assertGreater(stop, 3)
        return

  @parameterized.parameters(1, 2)
  def test_two_complete_one_step(self, keep):
    def prepare():
      first, second = _Process(self.root, keep=keep), _Process(self.root)
      first.save(10, "v1")
      first.write(20, "v1")
      return first, second

    def act(first, second):
      del second
      first.finish(20, "v1")

    def other(first, second):
      del first
      second.save(20, "v2")

    self.assert_always_one(prepare, act, other)
    self.assertEqual(self.complete(), [20] if keep == 1 else [10, 20])

  @parameterized.parameters(_cut, shutil.rmtree)
  def test_two_complete_a_step_whose_checkpoint_is_damaged(self, damage):
    def prepare():
      first, second = _Process(self.root), _Process(self.root)
      first.save(20, "v0")
      (self.root / "20").rename(self.base / "kept")
      first.save(10, "v0")
      (self.base / "kept").rename(self.root / "20")
      damage(self.root / "20")
      first.write(20, "v1")
      return first, second

    def other(first, second):
      del first
      second.read(20)
      second.save(20, "v2")

    self.assert_always_one(prepare, lambda first, second: first.finish(20, "v1"), other)
    self.assertEqual(self.complete(), [20])

  def test_another_goes_on_after_the_step(self):
    def prepare():
      first, second = _Process(self.root), _Process(self.root)
      first.save(10, "v1")
      first.write(20, "v1")
      return first, second

    def other(first, second):
      del first
      second.save(20, "v2")
      second.save(30, "v2")

    self.assert_always_one(prepare, lambda first, second: first.finish(20, "v1"), other)

  def test_two_read_a_damaged_one_and_one_replaces_it(self):
    def prepare():
      first, second = _Process(self.root, keep=2), _Process(self.root)
      first.save(10, "v1")
      first.save(20, "v1")
      _cut(self.root / "20")
      return first, second

    def act(first, second):
      del second
      first.read(20)

    def other(first, second):
      del first
      second.read(20)
      second.save(20, "v2")

    self.assert_always_one(prepare, act, other)

  def test_one_removes_what_another_completes(self):
    def prepare():
      first, second = _Process(self.root), _Process(self.root, keep=2)
      first.save(10, "v1")
      second.write(20, "v1")
      return first, second

    def other(first, second):
      del first
      with contextlib.suppress(OSError):  # It is gone.
        second.finish(20, "v1")

    self.assert_always_one(prepare, lambda first, _: first.folder.remove_unfinished("9.v1"), other)

  def test_the_newer_one_is_found_damaged_before_the_older_is_removed(self):
    process, other = _Process(self.root), _Process(self.root)
    process.save(10, "v1")
    process.write(20, "v1")

    def check():
      if (self.root / "20").exists():  # It is complete.
        _cut(self.root / "20")
        other.read(20)

    process.folder = folder_lib.CheckpointFolder(self.root, keep=1, check_fence=check)
    process.finish(20, "v1")
    self.assertEqual(self.complete(), [10])

  def test_a_process_without_the_fence_removes_nothing(self):
    process = _Process(self.root)
    process.save(10, "v1")
    process.write(20, "v1")
    process.is_fenced = True
    with self.assertRaises(base.FencedError):
      process.finish(20, "v1")
    self.assertEqual(os.listdir(self.root), ["10"])

  def test_whoever_loses_the_fence_in_between_removes_nothing(self):
    process = _Process(self.root)
    process.save(10, "v1")
    process.write(20, "v1")
    answers = iter([None])  # Before it is complete; not before the removal.

    def check():
      if next(answers, base.FencedError()) is not None:
        raise base.FencedError("The workdir is that of another run now.")

    process.folder = folder_lib.CheckpointFolder(self.root, keep=1, check_fence=check)
    with self.assertRaises(base.FencedError):
      process.finish(20, "v1")
    self.assertEqual(self.complete(), [10, 20])
