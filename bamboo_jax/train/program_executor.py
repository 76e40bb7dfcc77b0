"""Runs each step as one program, and by rows after a death.

A death takes all that the program would have returned with it, so its step is
run again: the nodes that are left give the state of before the step, each its
own layers and its replica, to the executor `rows`, which runs the step and goes
on until spare nodes have filled the lost places. Then the state goes back to a
program, compiled anew for the mesh of the new nodes.

Rows stand by from the beginning. They also evaluate, since a program only
trains.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import time

import ml_collections
import numpy as np

from bamboo_jax import base
from bamboo_jax.faults import fault_file
from bamboo_jax.plan import planner
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.runtime.spmd import engine as engine_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train import build
from bamboo_jax.train import build_program
from bamboo_jax.train import cost
from bamboo_jax.train import executor as executor_lib
from bamboo_jax.train import failures
from bamboo_jax.train import step as step_lib


class ProgramExecutor:
  """Pipelines whose steps are one program; see `executor.Executor`.

  Attributes:
    plan: What is predicted of a step of the program.
    recoveries: The deaths in the last step, also if it was not committed.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
      *,
      cache: executor_lib.Cache,
      faults: Sequence[fault_file.Fault],
  ) -> None:
    """Makes the program and the nodes that stand by, without state."""
    self._config = config
    self._task = task
    self._cache = cache
    self._faults = faults
    self._program = build_program.make_program(config, task, plan)
    self._rows = executor_lib.RowsExecutor(
        config, task, plan, cache=cache, faults=()
    )
    self.plan = self._program.plan
    self.recoveries: Sequence[failures.Recovery] = ()
    self._refresh_bytes = build_program.refresh_bytes(config, task, plan)
    # What holds the state; None while rows do.
    self._engine: engine_lib.SpmdEngine | None = self._make_engine()

  def nodes(self) -> cost.Nodes:
    """Returns the nodes that live now."""
    return self._rows.nodes()

  def timelines(self) -> Sequence[timeline_lib.Timeline]:
    """Returns when passes are planned to run, by pipeline."""
    return self.plan.timelines if self._engine else self._rows.timelines()

  def compile(self, *, evaluate: bool) -> None:
    """Compiles the program, and rows, which stand by."""
    self._rows.compile(evaluate=evaluate)
    if self._engine is not None:
      self._engine.compile()

  def set_state(self, layers: executor_lib.Layers) -> None:
    """Gives every node a copy of the state of its layers."""
    (self._engine or self._rows).set_state(layers)

  def layer_states(self) -> executor_lib.Layers:
    """Returns the state of each layer."""
    return (self._engine or self._rows).layer_states()

  def check_replicas(self, step: int) -> None:
    """Raises `base.ReplicaMismatchError` unless replicas are their owners'."""
    if self._engine is None:
      self._rows.check_replicas(step)
    elif self._config.redundancy.mode != "none":
      for pipeline in range(self.plan.num_pipelines):
        name = replicas.find_difference(
            self._engine.layer_states(pipeline),
            self._engine.replica_states(pipeline),
        )
        if name is not None:
          raise base.ReplicaMismatchError(
              f"After step {step} the replica of layer {name!r} in pipeline "
              f"{pipeline} differs from its owner's."
          )

  def evaluate(
      self, microbatches: Iterable[Mapping[str, np.ndarray]]
  ) -> tuple[float, float]:
    """Returns sum and weight of the losses without dropout; blocks."""
    if self._engine is None:
      return self._rows.evaluate(microbatches)
    self._rows.set_state(self._engine.layer_states())
    losses = self._rows.evaluate(microbatches)
    self._rows.drop_state()
    return losses

  def run(self, step: int, feed: node_lib.FeedFn) -> step_lib.StepResult:
    """Returns the result of a committed step; see `step.Transaction.run`."""
    self.recoveries = ()
    faults = [fault for fault in self._faults if fault.step == step]
    if self._engine is not None and not faults:
      return self._run_program(step, feed)
    start = time.perf_counter()
    lost_program = self._engine is not None
    if lost_program:
      faults = self._hand_over(faults)
    handed_secs = time.perf_counter() - start
    self._rows.transaction.faults = faults
    try:
      result = self._rows.run(step, feed)
    finally:
      self.recoveries = self._rows.recoveries
    if lost_program:
      num_passes = self.plan.batch.total_microbatches * self.plan.num_stages
      self.recoveries[0].add_lost_program(
          handed_secs, passes={"F": num_passes, "B": num_passes}
      )
      result = dataclasses.replace(
          result, secs=result.secs + handed_secs, start_secs=start
      )
    if self._has_all_nodes():
      self._take_back()
    return result

  def close(self) -> None:
    """Ends threads; state can still be read."""
    self._rows.close()

  def _run_program(
      self, step: int, feed: node_lib.FeedFn
  ) -> step_lib.StepResult:
    start = time.perf_counter()
    found = self._engine.step(step, feed)
    secs = time.perf_counter() - start
    return step_lib.StepResult(
        loss=found.loss,
        weight=found.weight,
        grad_norm=found.grad_norm,
        secs=secs,
        phase_secs={"program": secs},
        measured=(),
        start_secs=start,
        refresh_bytes=self._refresh_bytes,
        recoveries=(),
    )

  def _hand_over(
      self, faults: Sequence[fault_file.Fault]
  ) -> list[fault_file.Fault]:
    """Gives the state of before the step to rows; returns their faults.

    The first death is that which the program does not survive. Rows begin with
    it; other deaths hit them when their time comes.
    """
    first, *others = sorted(faults, key=_moment)
    layers = self._engine.surviving_states({(first.pipeline, first.stage)})
    if len(layers) == len(self._task.layer_names):
      self._rows.set_state(layers)
    # Else rows are about to find out that a stage has no copy left.
    self._drop_engine()
    return [dataclasses.replace(first, at=fault_file.PHASES[0]), *others]

  def _take_back(self) -> None:
    """Gives the state to a program on the nodes that there are now."""
    layers = self._rows.layer_states()
    self._engine = self._make_engine()
    self._engine.compile()
    self._engine.set_state(layers)
    self._rows.drop_state()

  def _has_all_nodes(self) -> bool:
    """Returns whether every stage has a node of its own."""
    owners = [node for row in self._rows.engine.owners for node in row]
    return len(set(owners)) == len(owners)

  def _make_engine(self) -> engine_lib.SpmdEngine:
    owners = tuple(self._rows.engine.owners)
    if owners not in self._cache.engines:
      self._cache.engines[owners] = build_program.make_engine(
          self._config, self._task, self._program, owners=owners
      )
    return self._cache.engines[owners]

  def _drop_engine(self) -> None:
    self._engine.drop_state()
    self._engine = None


def _moment(fault: fault_file.Fault) -> tuple[int, int]:
  """Returns what sorts deaths within a step."""
  if isinstance(fault.at, int):
    return 0, fault.at
  index = fault_file.PHASES.index(fault.at)
  return (index, 0) if index else (0, -1)
