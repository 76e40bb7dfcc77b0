"""What is compiled beside training, so that a change finds it ready."""

from collections.abc import Callable, Collection
from concurrent import futures
from typing import Any

from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster import views
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.train import layout as layout_lib


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
    self._asked = self._ready = 0

  def compile(self) -> None:
    """Begins to compile what the roles take, and the next death."""
    jobs = self._engine.compilations(evaluate=self._evaluate)
    self._executor.submit(_call, jobs)

  def newest_ready(self) -> int:
    """Returns the newest view with newcomers that this node can work in.

    Begins to prepare for the newest there is.
    """
    newest, adopted = self._client.newest, self._client.adopted.number
    if newest.number > max(adopted, self._asked):
      self._asked = newest.number
      jobs = self._find_jobs(newest.numbers)
      self._executor.submit(self._prepare, newest.number, jobs)
    return max(adopted, self._ready)

  def prepare(self, view: views.View) -> None:
    """Compiles what the roles in a view take; blocks."""
    self._prepare(view.number, self._find_jobs(view.numbers))

  def prepare_nodes(self, alive: Collection[int]) -> None:
    """Compiles what the roles take that `alive` would get; blocks."""
    _call(self._find_jobs(alive))

  def _find_jobs(self, alive: Collection[int]) -> list[Callable[[], Any]]:
    roles = self._plan(alive).roles
    return self._engine.preparations(
        [r.owners for r in roles], [r.shadows for r in roles]
    )

  def _prepare(self, view: int, jobs: list[Callable[[], Any]]) -> None:
    _call(jobs)
    self._ready = max(view, self._ready)


def _call(jobs: list[Callable[[], Any]]) -> None:
  for job in jobs:
    job()
