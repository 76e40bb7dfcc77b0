"""Runs steps in which nodes die, and compares with a run in which nobody does.

Every case starts from the state after a first step, replicas as that step has
refreshed them. To the bit the same must be: loss and number of tokens of each
step, and after it the state of every stage in every pipeline. Besides, replicas
must equal their owners, and what is committed must have each microbatch of each
stage in it once.

Nodes are made anew for each case, but not their programs. So a case takes
little longer than its steps.
"""

import collections
from collections.abc import Collection, Mapping, Sequence
import contextlib
import copy
import dataclasses
import functools

import jax
import ml_collections
import numpy as np

from bamboo_jax import base
from bamboo_jax.faults import fault_file
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.train import build
from bamboo_jax.train import membership as membership_lib
from bamboo_jax.train import step as step_lib
from launch.fault_sweep import cases as cases_lib

FIRST_STEP = cases_lib.FIRST_STEP


class TroubleError(AssertionError):
  """A step with deaths has not come to what it should."""


@dataclasses.dataclass(frozen=True)
class Nodes:
  """All nodes of a run, and their roles."""

  engine: engine_lib.Engine
  membership: membership_lib.Membership

  def states(self) -> dict[tuple[int, int], spec_lib.StageState]:
    """Returns a copy of the state of each stage that each node holds."""
    return {
        (number, stage): jax.tree.map(np.array, state)
        for number, node in self.engine.nodes.items()
        for stage, state in node.state.items()
    }

  def set_states(
      self, states: Mapping[tuple[int, int], spec_lib.StageState]
  ) -> None:
    """Gives nodes what `states` returned."""
    for (number, stage), state in states.items():
      node = self.engine.nodes[number]
      node.state[stage] = jax.device_put(state, node.device, may_alias=False)


@dataclasses.dataclass(frozen=True)
class Wanted:
  """What a step comes to: loss, number of tokens, bits of the state."""

  loss: float
  weight: float
  layers: Mapping[str, Sequence[bytes]]


class Trials:
  """Cases of one config, and the run without deaths to compare them with.

  Attributes:
    whole: The model, as one stage.
    steps: The step in which nodes die.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      *,
      cache: program_cache.ProgramCache,
      whole: spec_lib.StageSpec | None = None,
  ) -> None:
    """Compiles, and runs the first step.

    Args:
      config: What to run; each node must have a device.
      cache: Programs of trials before these.
      whole: The model that those programs are of.
    """
    task = build.make_task(config)
    self.whole = task.whole if whole is None else whole
    self.batches = task.batches
    self._cache = cache
    self._task = build.Task(self.whole, task.batches)
    self._plan = build.make_plan(config, build.make_profile(config, self._task))
    self._config = config
    plain = copy.deepcopy(config)
    plain.redundancy.mode = "none"
    plain.redundancy.spares = 0
    self._plain = self._make_nodes(plain)
    self._wanted: list[Wanted] = []
    nodes = self._make_nodes(config)
    layers = spec_lib.init_layers(self.whole)
    for engine in (self._plain.engine, nodes.engine):
      compile_ahead.compile_all(engine, evaluate=False)
      engine.set_state(layers)
    self.steps = self._look_at(nodes)
    for step in range(FIRST_STEP):
      self.run_step(nodes, step)
    self._states = nodes.states()

  def begin(self) -> Nodes:
    """Returns nodes that are about to run the step `FIRST_STEP`."""
    nodes = self._make_nodes(self._config)
    nodes.set_states(self._states)
    return nodes

  def run(self, case: cases_lib.Case) -> tuple[int, ...]:
    """Runs a case.

    Returns:
      The stages of which no copy is left, if that is what must come of the
      deaths; else none.

    Raises:
      TroubleError: Something else came of them.
      base.ReplicaMismatchError: A replica differs from its owner.
    """
    nodes = self.begin()
    for step in range(FIRST_STEP, FIRST_STEP + case.num_steps):
      faults = [f for f in case.faults if f.step == step]
      doomed = _doomed_stages(nodes.membership.roles, faults)
      try:
        self.run_step(nodes, step, faults)
      except base.UnrecoverableHereError as error:
        if error.stages not in doomed:
          raise TroubleError(f"step {step}: {error}") from error
        return error.stages
      if doomed:
        raise TroubleError(f"step {step} has survived the loss of {doomed}")
    return ()

  def run_step(
      self,
      nodes: Nodes,
      step: int,
      faults: Sequence[fault_file.Fault] = (),
  ) -> step_lib.StepResult:
    """Returns the result of a step, after having checked it.

    Raises:
      TroubleError: It is not as it should be.
      base.ReplicaMismatchError: A replica differs from its owner.
      base.UnrecoverableHereError: A stage has no copy left.
    """
    engine = nodes.engine
    victims = {engine.owners[f.pipeline][f.stage]: f.at for f in faults}
    result = self._run_step(nodes, step, faults)
    wanted = self._want(step)
    if survivors := victims.keys() & engine.nodes.keys():
      raise TroubleError(f"step {step}: nodes {survivors} have not died")
    if (result.loss, result.weight) != (wanted.loss, wanted.weight):
      raise TroubleError(
          f"step {step}: loss {result.loss} of {result.weight} tokens, want "
          f"{wanted.loss} of {wanted.weight}"
      )
    committed = engine.nodes.keys() | {
        node for node, at in victims.items() if at == "apply"
    }
    self._check_counts(result, committed)
    for pipeline in range(self._plan.num_pipelines):
      layers = _bits_of(engine.layer_states(pipeline))
      if differing := [k for k in layers if layers[k] != wanted.layers[k]]:
        raise TroubleError(
            f"step {step}: pipeline {pipeline} has another state of "
            f"{', '.join(differing)}"
        )
    replicas.check_replicas(engine, step)
    return result

  def _run_step(
      self, nodes: Nodes, step: int, faults: Sequence[fault_file.Fault]
  ) -> step_lib.StepResult:
    transaction = step_lib.Transaction(
        nodes.engine,
        membership=nodes.membership,
        num_microbatches=self._plan.batch.total_microbatches,
        clip_norm=self._config.optimizer.clip_norm,
        faults=faults,
    )
    with contextlib.closing(transaction):
      return transaction.run(step, functools.partial(self._feed, step))

  def _want(self, step: int) -> Wanted:
    """Returns what comes of a step in which nobody dies."""
    while len(self._wanted) <= step:
      result = self._run_step(self._plain, len(self._wanted), ())
      layers = _bits_of(self._plain.engine.layer_states())
      self._wanted.append(Wanted(result.loss, result.weight, layers))
    return self._wanted[step]

  def _check_counts(
      self, result: step_lib.StepResult, nodes: Collection[int]
  ) -> None:
    """Checks that `nodes` have run each backward pass once."""
    counts = collections.Counter(
        (m.instruction.stage, m.instruction.microbatch)
        for m in result.measured
        if m.instruction.op is instruction_lib.Op.BACKWARD and m.node in nodes
    )
    for stage in range(self._plan.num_stages):
      for microbatch in range(self._plan.batch.total_microbatches):
        if (count := counts[stage, microbatch]) != 1:
          raise TroubleError(
              f"backward pass {stage}B{microbatch} counts {count} times"
          )

  def _make_nodes(self, config: ml_collections.ConfigDict) -> Nodes:
    engine = build.make_engine(
        config, self._task, self._plan, cache=self._cache
    )
    num_nodes, num_spares = build.num_nodes(config), config.redundancy.spares
    return Nodes(
        engine,
        membership_lib.Membership(
            engine,
            rows=build.make_rows(config, self._plan),
            spares=range(num_nodes - num_spares, num_nodes),
            rereplicate=config.redundancy.rereplicate,
        ),
    )

  def _look_at(self, nodes: Nodes) -> cases_lib.Steps:
    order = linearize.linearize(nodes.membership.timelines())
    num_stages = self._plan.num_stages
    return cases_lib.Steps(
        order=tuple(divmod(node, num_stages) for node, _ in order),
        num_pipelines=self._plan.num_pipelines,
        num_stages=num_stages,
    )

  @functools.cache  # noqa: B019 -- Goes with the trials.
  def _feed(
      self, step: int, microbatch: int, keys: tuple[str, ...]
  ) -> Mapping[str, np.ndarray]:
    return self.batches.microbatch(step, microbatch, keys)


def _doomed_stages(
    roles: Sequence[failover.Roles], faults: Sequence[fault_file.Fault]
) -> list[tuple[int, ...]]:
  """Returns for each pipeline that cannot survive the stages that it loses."""
  doomed = []
  for pipeline, former in enumerate(roles):
    owners = former.owners
    dead = {owners[f.stage] for f in faults if f.pipeline == pipeline}
    lost = tuple(
        stage
        for stage, owner in enumerate(owners)
        if {owner, former.shadows.get(stage, owner)} <= dead
    )
    if lost:
      doomed.append(lost)
  return doomed


def _bits_of(
    layers: Mapping[str, spec_lib.LayerState],
) -> dict[str, list[bytes]]:
  return {
      name: [np.asarray(a).tobytes() for a in jax.tree.leaves(state)]
      for name, state in layers.items()
  }
