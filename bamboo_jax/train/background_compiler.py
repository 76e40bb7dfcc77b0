"""What is compiled beside training, so that a change finds it ready."""

from collections.abc import Callable, Collection
from concurrent import futures
from typing import Any

from bamboo_jax.cluster import views
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.train import cohort as cohort_lib
from bamboo_jax.train import run_state as run_state_lib


class BackgroundCompiler:
  """Compiles in a thread, one thing after the other.

  Args:
    engine: Has the programs.
    cohort: Knows of newcomers.
    state: Plans the layout with them.
    evaluate: Whether owners evaluate.
  """

  def __init__(
      self,
      engine: engine_lib.Engine,
      cohort: cohort_lib.Cohort,
      state: run_state_lib.RunState,
      *,
      evaluate: bool,
  ) -> None:
    self._engine = engine
    self._cohort = cohort
    self._state = state
    self._evaluate = evaluate
    self._thread = futures.ThreadPoolExecutor(1, "compiler")
    self._last: futures.Future = futures.Future()
    self._last.set_result(None)
    self._asked = self._ready = 0

  @property
  def is_idle(self) -> bool:
    """Whether all that was begun is compiled."""
    return self._last.done()

  def compile(self) -> None:
    """Begins to compile what the roles take, and the next death."""
    jobs = compile_ahead.compile_jobs(self._engine, evaluate=self._evaluate)
    self._submit(_call, jobs)

  def wait(self) -> None:
    """Waits for what is being compiled."""
    futures.wait([self._last])

  def close(self) -> None:
    """Ends the thread, with what it is compiling."""
    self._thread.shutdown(cancel_futures=True)

  def newest_ready(self) -> int:
    """Returns the newest view with newcomers that this member can work in.

    Begins to prepare for the newest there is.
    """
    newest, adopted = self._cohort.newest, self._cohort.view.number
    if newest.number > max(adopted, self._asked):
      self._asked = newest.number
      self._submit(self._prepare, newest.number, self._find_jobs(newest))
    return max(adopted, self._ready)

  def prepare(self, view: views.View) -> None:
    """Compiles what the roles in a view take; blocks."""
    self._prepare(view.number, self._find_jobs(view))

  def prepare_nodes(self, alive: Collection[int]) -> None:
    """Compiles what the roles take that `alive` would get; blocks."""
    _call(self._find_jobs_of(alive))

  def _submit(self, call: Callable[..., None], *arguments: Any) -> None:
    self._last = self._thread.submit(call, *arguments)

  def _find_jobs(self, view: views.View) -> list[Callable[[], Any]]:
    if view.era != self._cohort.view.era:
      return []  # There all begin anew.
    return self._find_jobs_of(view.numbers)

  def _find_jobs_of(self, alive: Collection[int]) -> list[Callable[[], Any]]:
    roles = self._state.plan(alive).layout.roles
    return compile_ahead.compile_jobs_of(
        self._engine, [r.owners for r in roles], [r.shadows for r in roles]
    )

  def _prepare(self, view: int, jobs: list[Callable[[], Any]]) -> None:
    _call(jobs)
    self._ready = max(view, self._ready)


def _call(jobs: list[Callable[[], Any]]) -> None:
  for job in jobs:
    job()
