"""What is compiled beside training, so that a change finds it ready."""

from collections.abc import Callable, Collection
from concurrent import futures
from typing import Any

from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster import views
from bamboo_jax.recovery import assignment as layout_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import compile_ahead


class Ahead:
  """Compiles in a thread, one thing after the other.

  Args:
    engine: Has the programs.
    client: Knows of newcomers.
    plan: Returns the layout with these nodes between two steps.
    evaluate: Whether owners evaluate.
  """

  def __init__(
      self,
      engine: engine_lib.Engine,
      client: client_lib.Client,
      plan: Callable[[Collection[int]], layout_lib.Layout],
      *,
      evaluate: bool,
  ) -> None:
    self._engine = engine
    self._client = client
    self._plan = plan
    self._evaluate = evaluate
    self._executor = futures.ThreadPoolExecutor(1, "ahead")
    self._last: futures.Future = futures.Future()
    self._last.set_result(None)
    self._asked = self._ready = 0

  def compile(self) -> None:
    """Begins to compile what the roles take, and the next death."""
    jobs = compile_ahead.compile_jobs(self._engine, evaluate=self._evaluate)
    self._submit(_call, jobs)

  @property
  def is_idle(self) -> bool:
    """Whether all that was begun is compiled."""
    return self._last.done()

  def wait(self) -> None:
    """Waits for what is being compiled."""
    futures.wait([self._last])

  def newest_ready(self) -> int:
    """Returns the newest view with newcomers that this node can work in.

    Begins to prepare for the newest there is.
    """
    newest, adopted = self._client.newest, self._client.adopted.number
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
    self._last = self._executor.submit(call, *arguments)

  def _find_jobs(self, view: views.View) -> list[Callable[[], Any]]:
    if view.era != self._client.adopted.era:
      return []  # There all begin anew.
    return self._find_jobs_of(view.numbers)

  def _find_jobs_of(self, alive: Collection[int]) -> list[Callable[[], Any]]:
    roles = self._plan(alive).roles
    return compile_ahead.compile_jobs_of(
        self._engine, [r.owners for r in roles], [r.shadows for r in roles]
    )

  def _prepare(self, view: int, jobs: list[Callable[[], Any]]) -> None:
    _call(jobs)
    self._ready = max(view, self._ready)


def _call(jobs: list[Callable[[], Any]]) -> None:
  for job in jobs:
    job()
