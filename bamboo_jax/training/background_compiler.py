"""Compiles in the background, so that a new view finds its programs ready.

Programs of units serve all roles and are compiled before the first step; these are
the executor's own, of one program for all nodes.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent import futures
import threading
import time
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import views
from bamboo_jax.recovery import layout as layout_lib, moves
from bamboo_jax.training import failures as failures_lib, run_state as run_state_lib
from bamboo_jax.training.setup import job as job_lib

Job = Callable[[], Any]

_PAUSES = 3.0  # Pause after a job, as a multiple of its processor time.
_NONE = views.EMPTY.number


class BackgroundCompiler:
  """Compiles one job after the other in a thread.

  A program that fails to compile would be missing after a death, or block a
  joining node forever, so its error ends this member with its next vote.
  """

  def __init__(self, state: run_state_lib.RunState, executor: job_lib.Executor) -> None:
    self._executor, self._cohort, self._state = executor, state.cohort, state
    self._thread = futures.ThreadPoolExecutor(1, "compiler")
    self._last: futures.Future[None] = futures.Future()
    self._last.set_result(None)
    self._asked = self._ready = _NONE
    self._error: Exception | None = None
    self._is_closed = False
    self._hurry = threading.Event()
    self._is_under_way = False
    self._followed: layout_lib.Layout | None = None

  def follow(self) -> None:
    """Starts to compile the executor's programs for the layout, if that is new.

    Pauses after each job, as training needs the cores and the interpreter, too;
    but not at the start of a run, when no program is ready for a death.
    """
    if self._followed != self._state.layout:
      self._followed = self._state.layout
      jobs = self._executor.jobs(self._state.engine.lines)
      self._submit([*jobs, moves.load_solver], pauses=_PAUSES * self._is_under_way)
      self._is_under_way = True

  def wait(self) -> None:
    """Blocks until all jobs have ended, without their pauses."""
    self._hurry.set()
    futures.wait([self._last])
    self._hurry.clear()

  def close(self) -> None:
    """Cancels the pending jobs and waits for the running one."""
    self._is_closed = True
    self._hurry.set()
    self._thread.shutdown(cancel_futures=True)

  def newest_ready(self, failures: failures_lib.Failures) -> base.ViewId:
    """Returns the newest view whose programs are compiled, by its number.

    Starts to compile for a newer view. If a job has failed in the user's code,
    adds that to `failures`; else raises `base.CompilationError`.
    """
    if self._error is not None:
      if failures_lib.is_users(self._error):
        failures.add(self._error, base.describe_error(self._error))
        return self._cohort.view.number
      raise base.CompilationError(f"A program failed to compile: {self._error}") from self._error
    newest, adopted = self._cohort.newest, self._cohort.view.number
    if newest.number > max(adopted, self._asked):
      self._asked = newest.number
      self._submit(self._find_jobs(newest.numbers), newest.number)
    return max(adopted, self._ready)

  def prepare(self, alive: Collection[base.NodeId], view: base.ViewId = _NONE) -> None:
    """Compiles what only a run of nodes `alive` needs, as that of `view` is; blocks."""
    self._is_under_way = True
    self._run(self._find_jobs(alive), view)

  def _submit(self, jobs: Sequence[Job], view: base.ViewId = _NONE, pauses: float = 0.0) -> None:
    def guard() -> None:
      try:
        self._run(jobs, view, pauses)
      except Exception as error:  # XLA raises various types.
        self._error = self._error or error

    self._last = self._thread.submit(guard)

  def _run(self, jobs: Sequence[Job], view: base.ViewId, pauses: float = 0.0) -> None:
    for job in jobs:
      if not self._is_closed:
        start_secs = time.thread_time()
        job()
        self._hurry.wait(pauses * (time.thread_time() - start_secs))
    self._ready = max(view, self._ready)

  def _find_jobs(self, alive: Collection[base.NodeId]) -> Sequence[Job]:
    members = {*alive, *self._state.layout.nodes}
    change = self._state.plan(self._cohort.newest, members)
    return self._executor.jobs(change.layout.lines_of_ways)
