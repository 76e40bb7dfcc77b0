"""Jobs that run elsewhere: the same results, whatever breaks."""

import gc
import importlib
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.experiments import sweep
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.net import addresses
from tests import folders, late, samples

_ROOT = folders.ROOT

distributed = late.Library("distributed")

_DEADLINE_SECS = 60.0
_SPACED = ("a.b/my trace.csv", "a.b/it's mine.csv")


def square(x):
  return x * x


def die_once(job):
  """Returns the square of a number; the process dies the first time."""
  x, folder = job
  path = pathlib.Path(folder, f"tried_{x}")
  if x == 3 and not path.exists():
    path.touch()
    os.kill(os.getpid(), signal.SIGKILL)
  return x * x


def refuse(x):
  raise ValueError(f"x must not be {x}")


def die(unused_job):
  os.kill(os.getpid(), signal.SIGKILL)


def run(function, jobs, where, **options):
  """Returns the results, and what is printed."""
  with folders.printed() as out:
    found = [*sweep.run(function, jobs, where, **options)]
  return found, out.getvalue().splitlines()


class SweepTest(folders.FolderCase):

  def test_order_and_progress(self):
    found, lines = run(
        square,
        [3, 1, 2],
        sweep.Where(num_processes=1),
        num_runs=lambda job: job,
        describe=lambda job: {"job": job},
    )
    self.assertEqual(found, [9, 1, 4])
    self.assertEqual(
        [line.split()[:2] for line in lines],
        [["run=3", "job=3"], ["run=4", "job=1"], ["run=6", "job=2"]],
    )

  @parameterized.parameters(
      (0, 12, 7.0, "12 runs left"),
      (2, 1, 240.0, "1 run left, about 2 min"),
      (2, 1, 9.0, "1 run left, about 1 min"),
  )
  def test_what_is_left(self, num_done, num_left, secs, want):
    self.assertEqual(sweep._describe_rest(num_done, num_left, secs), want)

  def test_a_long_run_is_no_silence(self):
    said = threading.Event()
    self.enterContext(mock.patch.object(sweep, "_QUIET_SECS", 0.01))
    show = mock.patch.object(progress_lib.ProgressLine, "show_text", lambda self, text: said.set())
    self.enterContext(show)
    run(
        lambda x: said.wait(_DEADLINE_SECS),
        [1],
        sweep.Where(num_processes=1),
        describe=lambda _: {},
    )
    self.assertTrue(said.is_set())

  def test_processes(self):  # Starting them takes a second.
    jobs = [(x, self.folder) for x in range(6)]
    found, lines = run(
        die_once, jobs, sweep.Where(num_processes=2), describe=lambda job: {"x": job[0]}
    )
    self.assertEqual(found, [0, 1, 4, 9, 16, 25])
    self.assertTrue((self.folder / "tried_3").exists())
    self.assertStartsWith(lines[-1], "run=6 ")

  def test_a_job_that_kills(self):
    with self.assertRaisesRegex(ValueError, "killed 3 times .*--num_processes"):
      run(die, [1, 2], sweep.Where(num_processes=2))

  def test_resume(self):
    where = sweep.Where(num_processes=1, folder=self.folder / "jobs")
    for _ in range(2):
      results = sweep.run(square, [5, 6, 7], where)
      self.assertEqual(next(results), 25)
      results.close()
    (file,) = where.folder.iterdir()
    file.write_bytes(b"I7\n.")  # A pickle of another number.
    jobs = [5, 6, 7]
    self.assertEqual(run(square, jobs, where)[0], [7, 36, 49])
    self.assertEqual(run(abs, jobs, where)[0], jobs)  # Another function, and
    found, lines = run(square, jobs, where, inputs=["a"])
    self.assertEqual(found[0], 25)
    self.assertRegex(lines[0], "^note: 6 kept results in .*/jobs are of other code.* not used$")
    self.assertEqual(run(square, [8, 5], where)[0], [64, 7])
    where.clear()
    self.assertEqual(run(square, jobs, where)[0], [25, 36, 49])

  def test_edited_files(self):
    """Code and files that a job names are part of its key."""
    (self.folder / "a.b").mkdir()
    for name in ("f.py", "f_neighbour.py", "profile.json", "other.json", *_SPACED):
      (self.folder / name).touch()
    names = [f"--config.model.name={self.folder}/f.py:make", "a", "a" * 300]
    spaced = [f"{self.folder}/{name}" for name in _SPACED]
    jobs = [(names, {"profile": f"{self.folder}/profile.json"}, spaced)]
    where = sweep.Where(num_processes=1, folder=self.folder / "jobs")
    run(str, jobs, where)
    for edited, is_kept in (
        ("other.json", True),
        ("profile.json", False),
        ("f.py", False),
        ("f_neighbour.py", False),
        *((name, False) for name in _SPACED),
    ):
      for file in where.folder.iterdir():
        file.write_bytes(pickle.dumps("kept"))
      (self.folder / edited).write_text("# edited")
      found, _ = run(str, jobs, where)
      self.assertEqual(found == ["kept"], is_kept, msg=edited)

  def test_a_plugin_that_is_installed(self):
    plugin = self.folder / "installed_plugin.py"
    self.enterContext(mock.patch.object(sys, "path", [*sys.path, str(self.folder)]))
    where = sweep.Where(num_processes=1, folder=self.folder / "jobs")
    digests = []
    for content in ("x = 1", "x = 2"):
      plugin.write_text(content)
      importlib.invalidate_caches()
      digests.append(sweep.digest_code({"plugins": ["installed_plugin"], "model": {"name": "a"}}))
      _, lines = run(square, [5], where, inputs=digests[-1])
    self.assertLen(digests[0], 1)
    self.assertNotEqual(*digests)
    self.assertRegex(lines[0], "^note: 1 kept results in .* are of other code, plug-ins, inputs")

  def test_a_result_that_others_can_write(self):
    where = sweep.Where(num_processes=1, folder=self.folder / "jobs")
    run(square, [5], where)
    (file,) = where.folder.iterdir()
    file.chmod(0o664)
    with self.assertRaisesRegex(ValueError, "is not read: others may write"):
      run(square, [5], where)

  def test_shards(self):
    jobs, folder = [*range(10)], self.folder / "jobs"
    merge = sweep.Where(num_merged=3, folder=folder)
    for index, num_jobs in ((1, 4), (3, 3)):
      where = sweep.Where(1, shard=sweep.parse_shard(f"{index}/3"), folder=folder)
      text = f"shard={index}/3 jobs={num_jobs} of 10"
      with self.assertRaisesRegex(sweep.ShardEnd, text):
        run(square, jobs, where)
    with self.assertRaisesRegex(ValueError, "^Shards are not complete: 2/3 has 0 of 3 jobs. Run"):
      run(square, jobs, merge)
    self.assertLen([*folder.iterdir()], 7)
    where = sweep.Where(1, shard=sweep.parse_shard("2/3"), folder=folder)
    with self.assertRaises(sweep.ShardEnd):
      run(square, jobs, where)
    self.assertEqual(run(die, jobs[:0], merge)[0], [])
    self.assertEqual(run(square, jobs, merge)[0], [x * x for x in jobs])

  @parameterized.parameters("tcp://127.0.0.1:{port}", "nowhere", "udp://a:1")
  def test_no_scheduler(self, address):
    # Dask's client that could not connect closes when it is deleted. If that happens while the
    # next one is made, it waits for a lock of its own thread for ever.
    self.addCleanup(gc.collect)
    address = address.format(port=addresses.free_port())
    with mock.patch.object(sweep, "_CONNECT_SECS", 0.5):
      with self.assertRaisesRegex(ValueError, f"^--dask={address}: no Dask scheduler answers: "):
        run(square, [1], sweep.Where(dask=address))

  def test_parts(self):
    self.assertEqual([*range(8)[sweep.parse_shard("2/3")]], [1, 4, 7])
    for text in ("0/2", "3/2", "a/2", "1", "", "1/2/3"):
      with self.assertRaisesRegex(ValueError, "such as 2/4, got"):
        sweep.parse_shard(text)


class DaskTest(folders.FolderCase):
  """A real scheduler, and workers as processes: seconds for each test."""

  def setUp(self):
    super().setUp()
    port = addresses.free_port()
    self.address = f"tcp://127.0.0.1:{port}"
    self.where = sweep.Where(dask=self.address)
    self.start("scheduler", "--no-dashboard", f"--port={port}")
    # It may take longer to start than a sweep waits for it.
    distributed.Client(self.address, set_as_default=False, timeout=_DEADLINE_SECS).close()

  def start(self, program, *arguments, path=_ROOT):
    process = subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments],
        cwd=self.folder,
        env={**os.environ, "PYTHONPATH": str(path)},
        stderr=subprocess.DEVNULL,
    )
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    return process

  def start_worker(self, *, num_threads=1, path=_ROOT):
    return self.start(
        "worker",
        self.address,
        "--no-nanny",
        "--no-dashboard",
        f"--nthreads={num_threads}",
        path=path,
    )

  def wait_for_workers(self, number):
    deadline_secs = time.monotonic() + _DEADLINE_SECS
    with distributed.Client(self.address, set_as_default=False) as client:
      while len(client.nthreads()) != number:
        self.assertLess(time.monotonic(), deadline_secs)

  @samples.only_all  # A process that is killed is asserted above.
  def test_a_worker_is_killed(self):
    workers = [self.start_worker() for _ in range(2)]
    self.wait_for_workers(2)
    jobs = [(x, self.folder) for x in range(40)]
    found, _ = run(die_once, jobs, self.where)
    self.assertEqual(found, [x * x for x in range(40)])
    self.assertTrue((self.folder / "tried_3").exists())
    codes = {worker.poll() for worker in workers}
    self.assertEqual(codes, {None, -signal.SIGKILL})
    with self.assertRaisesRegex(ValueError, "x must not be 1"):
      run(refuse, [1], self.where)

  def test_workers_that_cannot_take_part(self):
    with mock.patch.object(sweep, "_CONNECT_SECS", 0.5):
      with self.assertRaisesRegex(ValueError, "has no worker after 0.5 s"):
        run(square, [1], self.where)
    other, broken = self.folder / "other", self.folder / "broken"
    shutil.copytree(_ROOT / "bamboo_jax", other / "bamboo_jax")
    broken.mkdir()
    (broken / "bamboo_jax.py").write_text("import no_such")
    for options, message in (
        (dict(path=other), r"worker tcp://127\S* has bamboo_jax code .*, not code "),
        (dict(path=broken), "worker tcp://.*No module named 'no_such'"),
        (dict(num_threads=2), "2 threads; .*--nthreads=1"),
    ):
      worker = self.start_worker(**options)
      self.wait_for_workers(1)
      with self.assertRaisesRegex(ValueError, message):
        run(square, [1], self.where)
      worker.kill()
      self.wait_for_workers(0)
