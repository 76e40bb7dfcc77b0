"""What runs the steps of a run, and holds the state that they work on.

There are two: `rows`, where each node runs its row of instructions, and `spmd`,
where a step is one program, see `program_executor`.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import Protocol

import ml_collections
import numpy as np

from bamboo_jax.faults import fault_file
from bamboo_jax.plan import planner
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.phases import evaluate
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.runtime.spmd import engine as program_engine
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train import build
from bamboo_jax.train import cost
from bamboo_jax.train import failures
from bamboo_jax.train import membership as membership_lib
from bamboo_jax.train import step as step_lib

Layers = Mapping[str, spec_lib.LayerState]
Owners = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Cache:
  """What has been compiled, for the executor after a restart.

  Attributes:
    stages: Programs of stages.
    engines: Programs of whole steps, by the node of each stage of each
      pipeline.
  """

  stages: program_cache.ProgramCache = dataclasses.field(
      default_factory=lambda: program_cache.ProgramCache()
  )
  engines: dict[Owners, program_engine.SpmdEngine] = dataclasses.field(
      default_factory=dict
  )


class Executor(Protocol):
  """Runs steps.

  Attributes:
    plan: What is predicted of a step.
    recoveries: The deaths in the last step, also if it was not committed.
  """

  plan: planner.Plan
  recoveries: Sequence[failures.Recovery]

  def nodes(self) -> cost.Nodes:
    """Returns the nodes that live now."""

  def timelines(self) -> Sequence[timeline_lib.Timeline]:
    """Returns when what runs now is planned to run, by pipeline."""

  def compile(self, *, evaluate: bool) -> None:
    """Compiles everything; `evaluate` says whether that will be called."""

  def set_state(self, layers: Layers) -> None:
    """Gives every node a copy of the state of its layers."""

  def layer_states(self) -> Layers:
    """Returns the state of each layer."""

  def run(self, step: int, feed: node_lib.FeedFn) -> step_lib.StepResult:
    """Returns the result of a committed step; see `step.Transaction.run`."""

  def check_replicas(self, step: int) -> None:
    """Raises `base.ReplicaMismatchError` unless replicas are their owners'."""

  def evaluate(
      self, microbatches: Iterable[Mapping[str, np.ndarray]]
  ) -> tuple[float, float]:
    """Returns sum and weight of the losses without dropout; blocks."""

  def close(self) -> None:
    """Ends threads; state can still be read."""


class RowsExecutor:
  """Nodes that run rows.

  Attributes:
    plan: See `Executor`.
    engine: The nodes.
    membership: Who owns which stage.
    transaction: Runs steps.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
      *,
      cache: Cache,
      faults: Sequence[fault_file.Fault],
  ) -> None:
    """Makes the nodes, without state."""
    self.plan = plan
    self.engine = build.make_engine(config, task, plan, cache=cache.stages)
    num_nodes = build.num_nodes(config)
    self.membership = membership_lib.Membership(
        self.engine,
        rows=build.make_rows(config, plan),
        spares=range(num_nodes - config.redundancy.spares, num_nodes),
        rereplicate=config.redundancy.rereplicate,
    )
    self.transaction = step_lib.Transaction(
        self.engine,
        membership=self.membership,
        num_microbatches=plan.batch.total_microbatches,
        clip_norm=config.optimizer.clip_norm,
        faults=faults,
    )
    self.timelines = self.membership.timelines
    self.compile = functools.partial(compile_ahead.compile_all, self.engine)
    self.set_state = self.engine.set_state
    self.layer_states = self.engine.layer_states
    self.check_replicas = functools.partial(
        replicas.check_replicas, self.engine
    )
    self.run = self.transaction.run
    self.close = self.transaction.close

  @property
  def recoveries(self) -> Sequence[failures.Recovery]:
    """The deaths in the last step, also if it was not committed."""
    return self.transaction.recoveries

  def nodes(self) -> cost.Nodes:
    """Returns the nodes that live now."""
    state = self.membership.state
    owners = [pipeline.roles.owners for pipeline in state.pipelines]
    return cost.Nodes(owners, state.spares)

  def evaluate(
      self, microbatches: Iterable[Mapping[str, np.ndarray]]
  ) -> tuple[float, float]:
    """See `Executor`."""
    return evaluate.add_losses(evaluate.evaluate(self.engine, microbatches))

  def drop_state(self) -> None:
    """Lets all nodes forget their layers, which another executor has."""
    for node in self.engine.nodes.values():
      node.state.clear()
