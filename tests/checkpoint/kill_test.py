import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from absl.testing import absltest
import numpy as np

from bamboo_jax.checkpoint import arrays, folder as folder_lib, manifest
from bamboo_jax.runtime.stage import spec as spec_lib

_ROOT = pathlib.Path(__file__).resolve().parents[2]

# Where a save of step 4 over step 2 is killed: an event of `sys.addaudithook`,
# the end of a path it names, and the step that must be found afterwards.
_DEATHS = {
    "before_data": ("os.mkdir", "/node0.orbax-checkpoint-tmp", 2),
    "data_not_committed": ("os.rename", "/node0", 2),
    "no_manifest": ("os.rename", "/v1.2-a/manifest.json", 2),
    "not_committed": ("os.rename", "/4.v1.2-a.json", 2),
    "before_removal": ("os.remove", "/2.v1.1-a.json", 4),
    "in_removal": ("os.rmdir", "node0", 4),
}


def _layers(step):
  params = {"w": np.full((3, 2), step, np.float32)}
  return {"head": spec_lib.LayerState(params, (), {})}


def _save(folder, step):
  """Saves as a writer does, in this thread."""
  name = manifest.CheckpointName(step // 2, 1, step, "a")
  folder.remove_unfinished(name)
  part = folder.write_part(name, "node0", arrays.copy_to_host(_layers(step)))
  folder.finish(name, manifest.join([part], order=["head"], meta={"seed": 7}))


def die_while_saving(root):
  """Lets a child process be killed at each place of `_DEATHS`."""
  for name, (event, end, _) in _DEATHS.items():
    child = os.fork()  # JAX has not started yet.
    if child == 0:
      _die_at(pathlib.Path(root, name), event, end)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), (name, status)
    assert os.WTERMSIG(status) == signal.SIGKILL, (name, status)


def _die_at(root, event, end):
  """Kills this process in a save, when `event` is about a path with `end`."""
  folder = folder_lib.CheckpointFolder(root, keep=1, check_fence=lambda: None)
  _save(folder, 2)

  def hook(name, args):
    if name == event and any(str(path).endswith(end) for path in args):
      os.kill(os.getpid(), signal.SIGKILL)

  sys.addaudithook(hook)
  _save(folder, 4)
  os._exit(0)


class CheckpointKillTest(absltest.TestCase):

  def test_killed_process_leaves_a_whole_checkpoint(self):
    # Starts Python once (3 s), which forks for each place to die at.
    root = self.enterContext(tempfile.TemporaryDirectory())
    code = "from tests.checkpoint import kill_test as t; "
    code += f"t.die_while_saving({root!r})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    self.assertEqual(done.returncode, 0, done.stderr)
    for name, (_, _, step) in _DEATHS.items():
      with self.subTest(name):
        path = pathlib.Path(root, name)
        self.assertContainsSubset(["2", "4"] if name != "in_removal" else ["4"], os.listdir(path))
        folder = folder_lib.CheckpointFolder(path, keep=1, check_fence=lambda: None)
        self.assertEqual(folder.steps()[-1], step)
        layers, meta = folder.read(step, _layers(0), ["head"])
        np.testing.assert_array_equal(layers["head"].params["w"], step)
        self.assertEqual(meta, {"seed": 7})
        _save(folder, 6)
        self.assertCountEqual(os.listdir(path), ["6", "6.v1.3-a.json"])
