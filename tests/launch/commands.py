"""Commands in processes of their own: what tests of them share."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import string
import subprocess
import sys
import tempfile
import threading
import time

from absl.testing import parameterized

from bamboo_jax import base
from tests import forks

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Agents that are started one by one compile for each folder of a run otherwise.
PROGRAM_CACHE = f"--program_cache={base.find_cache('programs')}"
_DEADLINE_SECS = 300
_CONFIG = """
import os
import time

from bamboo_jax.runtime.wire import transport
from configs import sweep_faults

transport.Transport.__init__.__kwdefaults__["queued_bytes"] = $queued_bytes

class Logger:

  def log(self, step, metrics):
    secs = 0.1 if step < $held + 40 else $held_secs
    end_secs = time.monotonic() + secs
    while not os.path.exists('$released') and step >= $held:
      if time.monotonic() > end_secs:
        break
      time.sleep(0.02)

  def event(self, name, step, values):
    pass

  def close(self):
    pass

def make_logger(config, workdir):
  return Logger()

def get_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 1
  config.checkpoint.every_steps = 0
  config.metrics.plots = False
  config.update_from_flattened_dict($changes)
  if $held:
    config.metrics.logger = f"{__file__}:make_logger"
  return config
"""


def run(*arguments, **changes):
  """Runs Python, such as `run("-m", "launch.trace")`; returns how it ended.

  `changes` are options of `subprocess.run`.
  """
  given = dict(cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"})
  given |= dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=_DEADLINE_SECS)
  return subprocess.run([sys.executable, *arguments], text=True, check=False, **given | changes)


def fork(*arguments):
  """Runs Python as `run` does, but without the time for imports."""
  env = {**os.environ, "JAX_PLATFORMS": "cpu"}
  return forks.run(arguments, cwd=ROOT, env=env, timeout_secs=_DEADLINE_SECS)


def processes_that_name(text):
  """Returns the numbers of processes with `text` in their command line."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
      if text.encode() in path.read_bytes():
        found.append(int(path.parent.name))
    except OSError:
      continue  # It has ended.
  return found


class CommandCase(parameterized.TestCase):
  """Trains a small model in `folder`.

  Attributes:
    CHANGES: Those of its config.
    QUEUED_BYTES: What a worker may have sent before the others have it.
    HELD_FROM: If above 0, steps from this one on are slow until the test calls
      `release`: 40 of 0.1 s, and the rest of `HELD_SECS`. So there is time for
      what a test does to a run, and few steps are enough.
  """

  CHANGES = {}
  QUEUED_BYTES = 4 << 30
  HELD_FROM = 0
  HELD_SECS = 5.0
  ENVIRON = {"JAX_PLATFORMS": "cpu"}

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.is_kept, self.said = False, []
    self.addCleanup(self._remove_folder)
    self.config = self.folder / "small.py"
    self.released = self.folder / "released"
    text = string.Template(_CONFIG).substitute(
        changes=self.CHANGES,
        released=self.released,
        queued_bytes=self.QUEUED_BYTES,
        held_secs=self.HELD_SECS,
        held=self.HELD_FROM,
    )
    self.config.write_text(text)

  def _remove_folder(self):
    if not self.is_kept:
      shutil.rmtree(self.folder, ignore_errors=True)

  @contextlib.contextmanager
  def phase(self, name):
    """Prints the phase of a scenario; if it fails, the folder is kept."""
    print(f"phase {name}", flush=True)
    try:
      yield
    except BaseException:
      self.is_kept = True
      print(f"failed in phase {name}; all files are kept in {self.folder}")
      print(*self.said[-15:], sep="\n")
      raise

  def wait_for(self, condition, what):
    """Returns the value of `condition()` once it is true."""
    end_secs = time.monotonic() + _DEADLINE_SECS
    while not (found := condition()):
      self.assertLess(time.monotonic(), end_secs, msg=f"no {what}")
      time.sleep(0.05)
    return found

  def listen(self, process):
    """Returns a process whose lines a thread adds to a new list, `self.said`."""
    self.said = said = []
    reader = threading.Thread(target=lambda: said.extend(l.rstrip("\n") for l in process.stdout))
    reader.start()  # It would block if nobody read its lines.
    self.addCleanup(reader.join)
    self.addCleanup(process.kill)
    return process

  def hear(self, begin):
    """Waits for a line of that process that begins so; returns it."""
    return self.match(re.escape(begin))

  def match(self, pattern):
    """Waits for a line of that process whose beginning matches; returns it."""
    find = lambda: next((line for line in [*self.said] if re.match(pattern, line)), None)
    return self.wait_for(find, f"line {pattern!r}")

  def release(self):
    """Lets steps be as fast as they can."""
    self.released.touch()

  def start(self, command, *arguments, workdir="run"):
    """Starts a command that trains, such as "cluster"."""
    return self.start_module(
        f"launch.{command}",
        f"--config={self.config}",
        f"--workdir={self.folder / workdir}",
        *arguments,
    )

  def start_module(self, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, **self.ENVIRON},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    self.addCleanup(process.communicate)
    self.addCleanup(process.kill)
    return process

  def finish(self, *processes):
    """Waits until all have ended with status 0; returns the output of each."""
    said = []
    for process in processes:
      said.append(process.communicate(timeout=2 * _DEADLINE_SECS)[0])
      self.assertEqual(process.returncode, 0, msg=said[-1])
    return said

  def summary(self, workdir="run"):
    return json.loads((self.folder / workdir / "summary.json").read_text())

  def write_faults(self, *faults):
    """Returns the flag of a file of faults."""
    path = self.folder / "faults.csv"
    path.write_text("\n".join(("step,node,at,kind", *faults, "")))
    return f"--faults={path}"
