"""Covers a number of nodes with pipelines made from templates.

Every number of nodes from (f + 1) n0 up has a cover: at least f + 1 pipelines
that use all nodes (Oobleck, SOSP'23, section 4; see `templates`). We take the
cover with the shortest predicted step. The search is branch and bound: it tries
the sizes of pipelines in growing order, and prunes a prefix if even the best
rest could not do all microbatches in the time of the best cover so far. It is
exact if a pipeline is never faster with one microbatch more.
"""

from collections.abc import Iterator
import dataclasses
import functools
import math

from bamboo_jax import base
from bamboo_jax.plan import batch_split
from bamboo_jax.plan.times import predictor as predictor_lib, step_time as step_time_lib
from bamboo_jax.recovery.oobleck import templates as templates_lib

_ROUNDING_MS = 1e-6  # Error bound of a difference of times.
_MAX_TIES = 64  # Most equally good covers that are kept.


@dataclasses.dataclass(frozen=True)
class Cover:
  """Pipelines that use all nodes.

  Attributes:
    sizes: Number of nodes of each pipeline, in growing order.
    num_microbatches: Microbatches of each pipeline in a step.
  """

  sizes: tuple[int, ...]
  num_microbatches: tuple[int, ...]
  step_time: step_time_lib.StepTime


class Coverer:
  """Finds covers; caches them by number of nodes.

  Args:
    predictor: Predicts steps; microbatches are dealt by makespan regardless of
      its `split`.
    degrades: Whether nodes that are too few for f + 1 pipelines make fewer.
  """

  def __init__(
      self,
      templates: templates_lib.PipelineTemplates,
      predictor: predictor_lib.Predictor,
      *,
      degrades: bool = False,
  ) -> None:
    self.templates = templates
    self.predictor = predictor
    self._degrades = degrades
    self.best = functools.cache(self.best)  # Of this instance only.

  def most_used(self, num_nodes: int) -> int:
    """Returns the most nodes, up to `num_nodes`, that a cover can use.

    Each pipeline needs a microbatch, and a template.
    """
    most = min(num_nodes // self.templates.min_nodes, self.predictor.most_pipelines)
    # If it is 0, `best` says why.
    return min(num_nodes, most * self.templates.max_nodes) or num_nodes

  def min_pipelines(self, num_nodes: int) -> int:
    """Returns the least number of pipelines of `num_nodes` nodes."""
    wanted, each = self.templates.min_pipelines, self.templates.min_nodes
    return max(1, min(wanted, num_nodes // each)) if self._degrades else wanted

  def best(self, num_nodes: int) -> tuple[Cover, ...]:
    """Returns the covers with the shortest step, all equally good.

    Raises:
      base.InfeasibleError: There are too few nodes for f + 1 pipelines, or so
        many nodes that a pipeline would get no microbatch.
    """
    templates = self.templates
    fewest = self.min_pipelines(num_nodes)
    needed = fewest * templates.min_nodes
    if num_nodes < needed:
      raise base.InfeasibleError(
          f"{num_nodes} nodes are too few: {fewest} pipelines of at least "
          f"{templates.min_nodes} nodes need {needed}, {needed - num_nodes} "
          "more."
      )
    most_pipelines = self.predictor.most_pipelines
    fewest = max(fewest, -(-num_nodes // templates.max_nodes))  # Rounded up.
    if fewest > most_pipelines:
      raise base.InfeasibleError(
          f"{num_nodes} nodes are too many: they make at least {fewest} "
          f"pipelines of at most {templates.max_nodes} nodes, but there are "
          f"only {most_pipelines} microbatches."
      )
    search = _Search(templates, self.predictor)
    most = min(most_pipelines, num_nodes // templates.min_nodes)
    numbers = sorted(range(fewest, most + 1), key=lambda n: search.guess_ms(num_nodes, n))
    # Only a bound; `run` finds this cover again.
    search.bound_by(batch_split.split_evenly(num_nodes, numbers[0]))
    for num_pipelines in numbers:  # The most promising first, to prune early.
      search.run(num_nodes, num_pipelines)
    assert search.covers, f"no cover of {num_nodes} nodes"
    return tuple(search.covers)

  def best_of_some(self, num_nodes: int) -> tuple[Cover, ...]:
    """Returns the covers of up to `num_nodes` nodes with the shortest step.

    They may leave nodes unused, so more nodes are never slower than fewer.

    Raises `base.InfeasibleError` if nodes are too few for f + 1 pipelines.
    """
    found = []
    for count in range(self.templates.min_total_nodes, num_nodes + 1):
      try:
        found.append(self.best(count))
      except base.InfeasibleError:
        break  # More pipelines than microbatches.
    if not found:
      return self.best(num_nodes)
    return min(found, key=lambda covers: covers[0].step_time.total_ms)


class _Search:

  def __init__(
      self, templates: templates_lib.PipelineTemplates, predictor: predictor_lib.Predictor
  ) -> None:
    self._templates = templates
    self._predictor = predictor
    self._best_ms = math.inf
    self.covers: list[Cover] = []
    self._most_done = functools.cache(self._most_done)
    self._other_ms = functools.cache(self._other_ms)
    self._pace = functools.cache(self._pace)

  def guess_ms(self, num_nodes: int, num_pipelines: int) -> float:
    """Returns an estimate of the step with pipelines of almost equal size."""
    sizes = batch_split.split_evenly(num_nodes, num_pipelines)
    paces = [self._pace(size) for size in sizes]
    rate = sum(1.0 / pace.least_ms for pace in paces)
    fill_ms = max(pace.finish_ms(1) - pace.least_ms for pace in paces)
    return (
        fill_ms
        + self._predictor.num_microbatches / rate
        + self._other_ms(frozenset(sizes), num_pipelines)
    )

  def bound_by(self, sizes: tuple[int, ...]) -> None:
    """Limits the search to covers at least as fast as the one with `sizes`."""
    self._best_ms = self._evaluate(sizes).step_time.total_ms

  def run(self, num_nodes: int, num_pipelines: int) -> None:
    for sizes in self._sizes((), num_nodes, num_pipelines):
      cover = self._evaluate(sizes)
      total_ms = cover.step_time.total_ms
      if total_ms < self._best_ms:
        self._best_ms, self.covers = total_ms, []
      if total_ms == self._best_ms and len(self.covers) < _MAX_TIES:
        self.covers.append(cover)

  def _sizes(self, chosen: tuple[int, ...], left: int, num_more: int) -> Iterator[tuple[int, ...]]:
    if not num_more:
      yield chosen
      return
    max_nodes = self._templates.max_nodes
    least = chosen[-1] if chosen else self._templates.min_nodes
    # With less here, the rest could not hold all nodes.
    least = max(least, left - (num_more - 1) * max_nodes)
    # The rest are no smaller, as sizes grow.
    for size in range(least, min(left // num_more, max_nodes) + 1):
      longer = (*chosen, size)
      if self._may_be_best(longer, left - size, num_more - 1):
        yield from self._sizes(longer, left - size, num_more - 1)

  def _may_be_best(self, chosen: tuple[int, ...], left: int, num_more: int) -> bool:
    """Returns whether all microbatches may be done within the best time.

    A bound: the phases after the passes take at least as long as with the
    chosen pipelines only, and each remaining node does at most as much as a
    node in the most productive size of pipeline.
    """
    other_ms = self._other_ms(frozenset(chosen), len(chosen) + num_more)
    limit_ms = self._best_ms - other_ms + _ROUNDING_MS
    done = [self._most_done(size, limit_ms) for size in chosen]
    owed = self._predictor.num_microbatches - sum(done)
    if owed <= 0 or not all(done):  # Each pipeline needs a microbatch.
      return all(done)
    return any(
        self._most_done(size, limit_ms) * left >= owed * size
        # Sizes grow.
        for size in range(chosen[-1], self._templates.max_nodes + 1)
    )

  def _other_ms(self, sizes: frozenset[int], num_pipelines: int) -> float:
    partitions = [self._templates.of(size).partition for size in sizes]
    return predictor_lib.slowest(
        self._predictor.other_phases(p, num_pipelines=num_pipelines) for p in partitions
    ).total_ms

  def _most_done(self, size: int, limit_ms: float) -> int:
    most = self._predictor.num_microbatches
    return self._pace(size).most_done(limit_ms, most=most)

  def _pace(self, size: int) -> batch_split.PipelinePace:
    return self._predictor.pace(self._templates.of(size).partition)

  def _evaluate(self, sizes: tuple[int, ...]) -> Cover:
    partitions = [self._templates.of(size).partition for size in sizes]
    counts = self._predictor.deal([self._pace(size) for size in sizes])
    return Cover(sizes, counts, self._predictor.step_time(partitions, counts))
