"""Processes that complete and remove checkpoints in one folder.

The first is stopped before each of its calls of the file system, in turn, while
another does all that it does.
"""

import contextlib
import dataclasses
import itertools
import sys

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.checkpoint import folder as folder_lib, manifest as manifest_lib
from tests import folders

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
  """Writes checkpoints, until others may write instead: after `num_checks`."""

  def __init__(self, root, *, keep=1):
    self.num_checks = 1 << 30
    self.folder = folder_lib.CheckpointFolder(root, keep=keep, check_fence=self._check_fence)

  def write(self, step, attempt):
    """Writes a part with a file, which says the step; returns the name."""
    name = manifest_lib.CheckpointName(attempt, 1, step, "ab"[attempt % 2])
    item = self.folder.path / f"{step}/{name.save}/node0"
    item.mkdir(parents=True)
    (item / "data").write_text(f"{step}")
    return name

  def finish(self, name):
    files = {f"{name.step}/{name.save}/node0/data": len(f"{name.step}")}
    self.folder.finish(name, manifest_lib.Manifest(name.step, {"seed": 7}, {}, files))

  def save(self, step, attempt):
    name = self.write(step, attempt)
    self.folder.remove_unfinished(name)
    self.finish(name)

  def _check_fence(self):
    self.num_checks -= 1
    if self.num_checks < 0:
      raise base.FencedError


class InterleavingTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.root = self.folder / "checkpoints"

  def complete(self):
    """Returns the steps of complete checkpoints; changes nothing."""
    found = []
    for name in manifest_lib.find(self.root):
      with contextlib.suppress(base.CheckpointError):
        manifest_lib.read_manifest(self.root / name.file)
        found.append(name.step)
    return sorted(found)

  def assert_always_one(self, prepare, act, other, left=None):
    """Runs `act`, and `other` before one of its calls: each in turn.

    `prepare` fills a folder. `act` and `other` get what it returns. There must
    be a complete checkpoint before each call of both, and at the end; `left` then, if given.
    """
    for stop in itertools.count():
      self.root = self.folder / str(stop)
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
        if left and num_calls > stop:
          self.assertEqual(list(_Process(self.root).folder.steps()), left)
      if num_calls <= stop:
        self.assertGreater(stop, 3)
        return

  # What the first does, of saves that it has begun; what the second does meanwhile, and
  # the steps with a checkpoint at the end.
  @parameterized.named_parameters(
      ("both_complete_a_step", 1, [(20, 4)], [20]),
      ("both_complete_a_step_and_keep_two", 2, [(20, 4)], [10, 20]),
      ("another_goes_on_after_the_step", 1, [(20, 4), (30, 5)], [30]),
      ("another_has_gone_back", 1, [(15, 4)], [15]),
  )
  def test_always_one(self, keep, saves, left):
    def prepare():
      first, second = _Process(self.root, keep=keep), _Process(self.root, keep=keep)
      first.save(10, 1)
      return first, second, first.write(20, 3)

    act = lambda first, second, name: first.finish(name)
    other = lambda first, second, name: [second.save(*save) for save in saves]
    self.assert_always_one(prepare, act, other, left)

  def test_one_removes_what_another_completes(self):
    def prepare():
      first, second = _Process(self.root), _Process(self.root, keep=2)
      first.save(10, 1)
      return first, second, second.write(20, 2)

    def act(first, second, name):
      first.folder.remove_unfinished(dataclasses.replace(name, attempt=9))

    def other(first, second, name):
      with contextlib.suppress(OSError):  # It is gone.
        second.finish(name)

    self.assert_always_one(prepare, act, other)

  # Without the fence, and if it is lost in between: complete, and before the removal.
  @parameterized.parameters((0, [10]), (1, [10, 20]))
  def test_a_process_without_the_fence_completes_and_removes_nothing(self, num_checks, left):
    process = _Process(self.root)
    process.save(10, 1)
    name = process.write(20, 2)
    process.num_checks = num_checks
    with self.assertRaises(base.FencedError):
      process.finish(name)
    self.assertEqual(self.complete(), left)
