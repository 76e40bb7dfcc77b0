"""Runs independent jobs: on all cores, on a Dask cluster, or in shards.

A job is a plain value, a *sweep* applies one function of a module to all jobs.
Results are in the order of the jobs, on any worker, so that tables and
numbers are the same however a sweep was split:

    jobs     0  1  2  3  4  5  6        --shard=1/2: 0 2 4 6, --shard=2/2: 1 3 5
    folder   0     2  3                 results so far, one file each
    yields   0 ... 2 3 as soon as 1 is there

A job whose process dies is run again by another process. With a folder for
results a sweep that ended early goes on where it was, and shards of several
machines that share the folder are merged. A result that is kept is named after all
that it depends on: the job, and code and files that the job uses.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import process
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import pathlib
import pickle
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from typing import Any, TypeVar

from bamboo_jax import base
from bamboo_jax.base import extras, packaged
from bamboo_jax.metrics import progress as progress_lib

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
# Beside the package in a clone, and within it once installed.
_BESIDE = ("benchmarks", "configs", "launch", "reproductions", "tests")
_CODE = [_PACKAGE]
if not (_PACKAGE / "launch").is_dir():
  _CODE += [_PACKAGE.parent / name for name in _BESIDE]
_LIBRARIES = ("jax", "ml_collections", "numpy", "scipy")
_MAX_READ_BYTES = 2**26
# Perhaps of files: words, and whole texts in quotes, as a path may have spaces and dots.
_NAMES = *(re.compile(f"(?<={q})[^{q}\\n]+(?={q})") for q in "'\""), re.compile(r"[\w./+-]+[.]\w+")
_MAX_BROKEN = 3  # Pools in a row that finish no job.
_CONNECT_SECS = 10.0
_QUIET_SECS = 5.0  # After them a line says how much is left.

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class ShardEnd(Exception):
  """All jobs of a shard are done: there is nothing to summarise yet."""


def parse_shard(text: str) -> slice:
  """Returns the places of every N-th job from a text such as "2/4"; else raises `ValueError`."""
  match = re.fullmatch(r"(\d+)/(\d+)", text)
  if not match or not 1 <= int(match[1]) <= int(match[2]):
    raise ValueError(f"A shard must be from 1/N to N/N, such as 2/4, got {text!r}.")
  return slice(int(match[1]) - 1, None, int(match[2]))


@dataclasses.dataclass(frozen=True)
class Where:
  """Where jobs run, and where their results are kept.

  Attributes:
    num_processes: Of this machine; None: one per core. With one, jobs run in
      this process.
    dask: Address of a Dask scheduler, whose workers run the jobs instead.
    shard: The jobs to run; None: all.
    num_merged: Number of shards whose results are merged; no job is run then.
    folder: Of results; None: they are not kept.
  """

  num_processes: int | None = None
  dask: str | None = None
  shard: slice | None = None
  num_merged: int | None = None
  folder: pathlib.Path | None = None

  def clear(self) -> None:
    """Removes the kept results; call once their summary has been written."""
    if self.folder is not None:
      shutil.rmtree(self.folder, ignore_errors=True)


HERE = Where()


def run(
    function: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    where: Where = HERE,
    *,
    inputs: Sequence[str] = (),
    num_runs: Callable[[_Job], int] = lambda job: 1,
    describe: Callable[[_Job], Mapping[str, str | float]] | None = None,
) -> Iterator[_Result]:
  """Yields the results of `function` on `jobs`, in their order.

  `function` is a module-level function, as processes import it. Shows the
  number of finished runs (`num_runs` of each job), labelled `describe`; without
  labels, only on a terminal. A kept result is reused by the same code for an
  equal job (by its `repr`) with equal `inputs`, if no file that they name has
  changed; `digest_code` are inputs for the user's own code.

  Raises:
    ShardEnd: All jobs of the shard are done; none is yielded.
    ValueError: Shards to merge lack results; the scheduler does not answer; a
      worker has other versions; processes die again and again.
  """
  what = f"{versions()} {function.__module__}.{function.__qualname__} {inputs}"
  files = []
  if where.folder is not None:
    names = _name_results([f"{what} {job!r}" for job in jobs])
    files = [where.folder / name for name in names]
    if where.folder.is_dir() and (others := {*where.folder.iterdir()} - {*files}):
      print(
          f"note: {len(others)} kept results in {where.folder} are of other code, plug-ins, inputs "
          "or options, and not used"
      )
  results = {i: _read_result(f) for i, f in enumerate(files) if f.exists()}
  if where.num_merged:
    _check_shards(where.num_merged, len(jobs), results)
  selected = range(len(jobs))[where.shard or slice(None)]
  todo = {i: jobs[i] for i in selected if i not in results}
  num_done = sum(num_runs(jobs[i]) for i in selected if i in results)
  num_steps = sum(num_runs(jobs[i]) for i in selected)
  first = 0  # Not yielded yet.
  with contextlib.ExitStack() as stack:
    out = sys.stdout
    if describe is None and not out.isatty():
      out = stack.enter_context(open(os.devnull, "w"))
    bar = stack.enter_context(
        progress_lib.ProgressLine(
            num_steps=num_steps, unit="run", pause_secs=_QUIET_SECS, stream=out
        )
    )
    started, num_before = time.monotonic(), num_done
    done = _run_all(function, todo, where)
    stack.enter_context(contextlib.closing(done))
    while True:
      while first in results and not where.shard:
        yield results.pop(first)
        first += 1
      if num_done < num_steps:  # Processes may take a while to end.
        secs = time.monotonic() - started
        bar.explain(_describe_rest(num_done - num_before, num_steps - num_done, secs))
      if (ended := next(done, None)) is None:
        break
      i, results[i] = ended
      if where.folder is not None:
        where.folder.mkdir(parents=True, exist_ok=True)
        content = pickle.dumps(results[i])
        base.write_atomically(files[i], content, sync=False)
      num_done += num_runs(jobs[i])
      bar.show_step(num_done, describe(jobs[i]) if describe else {})
  if where.shard:
    name = f"{where.shard.start + 1}/{where.shard.step}"
    raise ShardEnd(f"shard={name} jobs={len(selected)} of {len(jobs)}")


def _describe_rest(num_done: int, num_left: int, secs: float) -> str:
  """Returns how much is left after `num_done` runs in `secs`, and for how long."""
  left = f"{num_left} run{'s' * (num_left != 1)} left"
  if not num_done:
    return left
  return f"{left}, about {max(1, round(num_left * secs / num_done / 60))} min"


def digest_code(config: Mapping[str, Any]) -> list[str]:
  """Returns a hash of each file of the user's code that a config names, for `inputs`."""
  return [f"{path} {digest}" for path, digest in base.find_code(config).items()]


def _check_shards(count: int, num_jobs: int, done: Mapping[int, Any]) -> None:
  """Raises `ValueError`, which names shards without results for all jobs."""
  lacking = []
  for index in range(1, count + 1):
    selected = range(num_jobs)[index - 1 :: count]
    num_done = sum(i in done for i in selected)
    if num_done < len(selected):
      lacking.append(f"{index}/{count} has {num_done} of {len(selected)} jobs")
  if lacking:
    raise ValueError(
        f"Shards are not complete: {'; '.join(lacking)}. Run them with the "
        "same flags and code, and --shard."
    )


def _run_all(
    function: Callable[[Any], Any], todo: Mapping[int, Any], where: Where
) -> Generator[tuple[int, Any]]:
  """Yields index and result of each job, in the order in which they end."""
  todo, num_broken = dict(todo), 0
  num_processes = where.num_processes or len(os.sched_getaffinity(0))
  num_processes = min(num_processes, len(todo))
  if where.dask is None and num_processes == 1:
    for i, job in todo.items():
      yield i, function(job)
    return
  call = function
  if where.dask is not None:
    call = functools.partial(_call, function, versions())
  while todo:
    start: contextlib.AbstractContextManager[futures.Executor]
    if where.dask is None:  # Spawned processes inherit no locks and no threads.
      spawn = multiprocessing.get_context("spawn")
      start = process.ProcessPoolExecutor(num_processes, mp_context=spawn)
    else:
      start = _join_dask(where.dask)
    try:
      with start as executor:
        waiting = {executor.submit(call, job): i for i, job in todo.items()}
        try:
          for future in futures.as_completed([*waiting]):
            i = waiting.pop(future)
            result = future.result()
            del todo[i]
            num_broken = 0
            yield i, result
        finally:
          for future in waiting:
            future.cancel()
    except process.BrokenProcessPool:
      num_broken += 1
      if num_broken == _MAX_BROKEN:
        raise ValueError(
            f"Processes were killed {num_broken} times before a job was done; "
            "is there enough memory for --num_processes?"
        ) from None


@contextlib.contextmanager
def _join_dask(address: str) -> Iterator[futures.Executor]:
  """Yields the executor of a Dask cluster, and says what is wrong with it in one line."""
  distributed = extras.load("distributed", extra="sweep", what="--dask")
  try:
    client = distributed.Client(address, timeout=_CONNECT_SECS, set_as_default=False)
  except (OSError, ValueError) as error:
    raise ValueError(f"--dask={address}: no Dask scheduler answers: {error}") from error
  with client:
    _check_workers(client, address)
    try:
      yield client.get_executor(pure=False)
    except distributed.KilledWorker as error:
      raise ValueError(f"--dask={address}: {error}") from error
    except futures.CancelledError:
      raise ValueError(f"--dask={address}: the scheduler ended before the jobs.") from None


def _check_workers(client: Any, address: str) -> None:
  """Raises `ValueError`, which names a worker that cannot take part."""

  def ask() -> dict[str, str]:
    # Sent as code: a worker may lack the package.
    module = importlib.import_module(__name__)
    found: dict[str, str] = module.versions()
    return found

  what = f"--dask={address}:"
  try:
    client.wait_for_workers(1, timeout=_CONNECT_SECS)
  except TimeoutError:
    raise ValueError(f"{what} it has no worker after {_CONNECT_SECS} s.") from None
  for worker, number in client.nthreads().items():
    if number != 1:
      raise ValueError(
          f"{what} worker {worker} has {number} threads; start it with " "--nthreads=1."
      )
  for worker, found in client.run(ask, on_error="return").items():
    if isinstance(found, Exception):
      raise ValueError(f"{what} worker {worker}: {found}.")
    _check_versions(found, versions(), f"{what} worker {worker}")


def _call(function: Callable[[Any], Any], wanted: Mapping[str, str], job: Any) -> Any:
  """Runs a job on a worker, which may have joined after the check."""
  _check_versions(versions(), wanted, f"Worker on {platform.node()}")
  return function(job)


def _check_versions(found: Mapping[str, str], wanted: Mapping[str, str], who: str) -> None:
  other = [
      f"{name} {found.get(name)}, not {version}"
      for name, version in wanted.items()
      if found.get(name) != version
  ]
  if other:
    raise ValueError(f"{who} has {'; '.join(other)}.")


def write_provenance(
    workdir: pathlib.Path, *, command: Sequence[str], config: str, traces: Sequence[str]
) -> None:
  """Writes `provenance.json`; `config` is JSON, `traces` are files.

  Raises `OSError` if the trace cannot be read, or the file not be written.
  """
  found = {
      "command": shlex.join(command),
      "config": json.loads(config),
      "versions": versions(),
      "commit": _commit(),
      "traces": {
          name: hashlib.sha256(packaged.find_file(name).read_bytes()).hexdigest() for name in traces
      },
  }
  text = json.dumps(found, indent=2) + "\n"
  base.write_atomically(workdir / "provenance.json", text)


@functools.cache
def versions() -> dict[str, str]:
  """Returns the versions of code and libraries, on which results depend."""
  code = hashlib.sha256()
  for folder in _CODE:
    for path in sorted(folder.rglob("*.py")):
      code.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
  return {
      "bamboo_jax": f"code {code.hexdigest()[:8]}",
      "Python": platform.python_version(),
      **{name: importlib.metadata.version(name) for name in _LIBRARIES},
  }


def _commit() -> str | None:
  """Returns the commit of this code, with "+" if files differ from it.

  None if the code is not in a repository of its own, or git is missing.
  """
  root = _PACKAGE.parent
  if not (root / ".git").exists():
    return None
  ask = lambda *arguments: subprocess.check_output(
      ["git", *arguments], cwd=root, stderr=subprocess.DEVNULL, text=True
  ).strip()
  try:
    commit = ask("rev-parse", "HEAD")
    changed = ask("status", "--porcelain", "--untracked-files=no")
  except (OSError, subprocess.CalledProcessError):
    return None
  return commit + "+" * bool(changed)


def _name_results(jobs: Sequence[str]) -> list[str]:
  """Returns the name of the result of each job, which has the content of files that it names."""
  read = functools.cache(_digest_named)
  names = []
  for job in jobs:
    found = [name for pattern in _NAMES for name in pattern.findall(job)]
    named = itertools.chain.from_iterable(map(read, found))
    names.append(hashlib.sha256(f"{job} {sorted({*named})}".encode()).hexdigest())
  return names


def _read_result(path: pathlib.Path) -> Any:
  """Returns a result.

  Raises `ValueError` if others can have written it: reading it runs what is in
  the file.
  """
  with open(path, "rb") as file:
    if danger := base.find_danger(os.fstat(file.fileno())):
      raise ValueError(
          f"The result {path} is not read: {danger}. Remove it, or name " "another --workdir."
      )
    return pickle.load(file)


def _digest_named(name: str) -> Sequence[str]:
  """Returns a hash of a file, if it is one; of code with its neighbours."""
  try:
    path = packaged.find_file(name)
    if not path.is_file():
      return ()
  except OSError:  # It is too long for a name.
    return ()
  if path.suffix != ".py":
    return [_digest(path)]
  return [_digest(file) for file in path.resolve().parent.glob("*.py")]


def _digest(path: pathlib.Path) -> str:
  """Returns name and hash of a file; if it is large, size and time."""
  status = path.stat()
  if status.st_size > _MAX_READ_BYTES:
    return f"{path.name} {status.st_size} {status.st_mtime_ns}"
  return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
