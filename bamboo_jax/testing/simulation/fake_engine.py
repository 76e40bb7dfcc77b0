"""The nodes of `trainer`: hashes in place of arrays, programs and files.

What a pass returns is the hash of step, stage, microbatch and all that it has
read, so a value that is paired wrongly or used twice changes the state. Methods
are those of the classes that they stand for.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import types
from typing import Any, TYPE_CHECKING

from bamboo_jax import base
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime import engine as engine_lib, executor as executor_lib, node as node_lib
from bamboo_jax.schedule import (
    channel as channel_lib,
    filling as filling_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    timeline as timeline_lib,
)
from bamboo_jax.testing.simulation import fake_setup
from bamboo_jax.train import step as step_lib
from bamboo_jax.train.members import cluster_cohort

if TYPE_CHECKING:
  from bamboo_jax.testing.simulation import trainer

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op
_Find = Callable[[Instruction], types.SimpleNamespace]
_NUM_SHARES, _PER_SHARE = fake_setup.NUM_SHARES, fake_setup.PER_SHARE
_PASS_SECS = 0.02
_DIGITS = 16


def mix(*parts: object) -> str:
  """Returns the hash of some values."""
  return hashlib.sha256(repr(parts).encode()).hexdigest()[:_DIGITS]


@functools.cache
def states_after(steps: int, num_stages: int) -> tuple[str, ...]:
  """Returns the state of each stage after so many steps without faults."""
  if not steps:
    return tuple(mix("start", s) for s in range(num_stages))
  states, step = states_after(steps - 1, num_stages), steps - 1
  sums = collections.defaultdict[tuple[int, int], str](str)
  for microbatch in range(_NUM_SHARES * _PER_SHARE):
    outputs, grad = [""], ""
    for stage, state in enumerate(states):
      key = (step, stage, microbatch)
      outputs.append(mix("forward", key, state, outputs[-1]))
    for stage in reversed(range(num_stages)):
      key = (step, stage, microbatch)
      grad = mix("backward", key, states[stage], outputs[stage], grad)
      entry = stage, microbatch // _PER_SHARE
      sums[entry] = mix(sums[entry], grad)
  total = lambda s: [sums[s, share] for share in range(_NUM_SHARES)]
  return tuple(mix(state, total(s)) for s, state in enumerate(states))


class FakeNode:
  """What a node holds: hashes, as `runtime.node` holds arrays."""

  def __init__(self, num_stages: int) -> None:
    self.state: dict[int, str] = {}  # By stage.
    self._num_stages = num_stages
    self.clear()

  def clear(self) -> None:
    """Drops all that it has of a step."""
    self.ledger = holdings_lib.HoldingsLedger()
    # By stage and microbatch; the sums by stage and share.
    self.activations: dict[tuple[int, int], str] = {}
    self.grads: dict[tuple[int, int], str] = {}
    self.sums = collections.defaultdict[tuple[int, int], str](str)

  def put_state(self, stage: int, state: str) -> None:
    """Sets the state of a stage."""
    self.state[stage] = state

  def run(self, step: int, i: Instruction, find: _Find) -> None:
    """Runs an instruction; `find` returns the link of a transfer."""
    key = (i.stage, i.microbatch)
    before = (i.stage - 1, i.microbatch)
    match i.op:
      case Op.FORWARD | Op.REDUNDANT_FORWARD:
        read = self.activations[before] if i.stage else ""
        self.activations[key] = mix("forward", (step, *key), self.state[i.stage], read)
      case Op.BACKWARD:
        assert key in self.ledger.residuals, f"no residuals of {key}"
        read = self.activations[before] if i.stage else ""
        given = self.grads[key] if i.stage < self._num_stages - 1 else ""
        grad = mix("backward", (step, *key), self.state[i.stage], read, given)
        entry = i.stage, i.microbatch // _PER_SHARE
        self.sums[entry] = mix(self.sums[entry], grad)
        self.grads[before] = grad
      case Op.SEND_ACTIVATION:
        find(i).send(self.activations[key])
      case Op.SEND_GRAD:
        find(i).send(self.grads[key])
      case Op.RECV_ACTIVATION:
        self.activations[key] = find(i).receive()
      case Op.RECV_GRAD:
        self.grads[key] = find(i).receive()
    self.ledger.add(i)


class FakeEngine:
  """The node of a worker, as `runtime.engine` has it; and its links."""

  def __init__(self, worker: "trainer.TrainerWorker") -> None:
    self.nodes: dict[int, FakeNode] = {}
    self.exchange = worker.transport
    stages = range(worker.num_stages)
    self.specs = [types.SimpleNamespace(state="") for _ in stages]
    self._worker = worker
    self._local: dict[channel_lib.Channel, collections.deque[str]] = collections.defaultdict(
        collections.deque
    )
    self.links = types.SimpleNamespace(drain=lambda alive: self._local.clear())

  def load_programs(self, node: int, stage: int) -> None:
    """Makes a local node, if it is not there."""
    if node == self._worker.number:
      self.nodes.setdefault(node, FakeNode(self._worker.num_stages))

  def set_pipelines(
      self,
      owners: engine_lib.Owners,
      shadows: Sequence[Mapping[base.StageId, base.NodeId]],
      shares: Sequence[Sequence[base.ShareId]],
      lines: engine_lib.Lines | None = None,
  ) -> None:
    """Sets the roles of nodes; drops the states that have none."""
    self.lines = lines or [*zip(owners, shares, strict=True)]
    held = [entry for row in owners for entry in base.by_stage(row)]
    held += [entry for replicas in shadows for entry in replicas.items()]
    for stage, node in held:
      self.load_programs(node, stage)
    for number, node in self.nodes.items():
      for stage in [s for s in node.state if (s, number) not in held]:
        del node.state[stage]

  def find(self, i: Instruction) -> types.SimpleNamespace:
    """Returns the link of a transfer, with `send` and `receive`."""
    assert i.peer is not None, i
    ends = (self._worker.number, i.peer)
    is_grad = i.op in (Op.SEND_GRAD, Op.RECV_GRAD)
    channel = channel_lib.Channel(
        "grad" if is_grad else "activation", ends if i.is_send else ends[::-1], (i.stage,)
    )
    if ends[0] == ends[1]:
      queue = self._local[channel]
      return types.SimpleNamespace(send=queue.append, receive=queue.popleft)
    (source, destination), name = channel.nodes, str(channel)
    return types.SimpleNamespace(
        send=lambda value: self.exchange.send(destination, name, [value]),
        receive=lambda: self.exchange.receive(source, name)[0],
    )


@dataclasses.dataclass(frozen=True)
class Sums:
  """Sums of gradients that a member has, by stage and share."""

  found: Mapping[str, str]


class Rows:
  """An executor whose rows the step below runs; see `runtime.executor`."""

  def __init__(self, engine: FakeEngine) -> None:
    self.filler = executor_lib.Filler()
    self.order: Sequence[tuple[int, Instruction]] = ()
    self._engine = engine

  def plan(
      self,
      timelines: Sequence[timeline_lib.Timeline],
      filling: filling_lib.StepFilling | None = None,
  ) -> None:
    """Sets the order in which the passes are run."""
    del filling
    self.order = timeline_lib.linearize(timelines)

  def holdings(self, *, is_begun: bool) -> dict[int, holdings_lib.Holdings]:
    """Returns what local nodes hold of the step that has begun."""
    nodes = self._engine.nodes.items() if is_begun else ()
    return {n: node.ledger.holdings() for n, node in nodes}

  def can_continue(self) -> bool:
    """Returns whether rows can run the rest of a step: always."""
    return True

  def planned_passes(self, secs: float) -> None:
    """Returns None: passes are not planned ahead."""
    del secs


class Step(step_lib.StepRunner):
  """The phases of a step; what is not here is that of `train.step`."""

  def __init__(
      self,
      worker: "trainer.TrainerWorker",
      engine: FakeEngine,
      cohort: cluster_cohort.ClusterCohort,
  ) -> None:
    self._worker, self._cohort = worker, cohort
    self._engine: Any = engine
    self._nodes, self._find = engine.nodes, engine.find
    self._rows = Rows(engine)
    self.executor: Any = self._rows
    self._phase_secs = {"compute": 0.0}

  def begin(
      self,
      step: base.StepId,
      feed: node_lib.FeedFn,
      due: faults_lib.FaultsDue,
      num_skipped: int = 0,
  ) -> None:
    """Starts a step: nodes drop what they have of the last one."""
    del feed, due
    self.num_skipped = num_skipped  # No step is skipped.
    self._step, self._planned = step, ()
    self._totals: dict[str, str] = {}  # Sums, by stage and share.
    for node in self._nodes.values():
      node.clear()

  def run_until_vote(self) -> None:
    """Runs the passes of its node, and adds up all sums."""
    nodes, me = self._nodes, self._worker.number
    for node, instruction in self._rows.order:
      if node in nodes:
        self._cohort.check()
        if not instruction.is_transfer:
          self._worker.sleep(_PASS_SECS)
        nodes[me].run(self._step, instruction, self._find)
    self._cohort.check()
    found = {
        f"{stage} {share}": nodes[me].sums[stage, share]
        for row, shares in self._engine.lines
        for stage, node in enumerate(row)
        if node == me
        for share in shares
    }
    said = self._cohort.gather(f"sums {self._step}", Sums(found))
    self._totals = {}
    for sums in said.values():
      assert not self._totals.keys() & sums.found.keys(), "a sum of two"
      self._totals |= sums.found
    self._cohort.check()

  def vote(self, vote: step_lib.Vote) -> dict[base.NodeId, step_lib.Vote]:
    """Returns the votes of all members."""
    votes = self._cohort.gather(f"vote {self._step}", vote)
    self._cohort.settled(base.StepId(self._step + 1))
    return votes

  def apply(self) -> None:
    """Mixes the sums of a step into the states."""
    for node in self._nodes.values():
      for stage, state in node.state.items():
        totals = [self._totals[f"{stage} {s}"] for s in range(_NUM_SHARES)]
        node.state[stage] = mix(state, totals)

  def compile(self, *, evaluate: bool) -> None:
    """Does nothing: there are no programs."""

  def bury(self) -> None:
    """Does nothing: no local node dies alone."""

  def close(self) -> None:
    """Does nothing: nothing is measured."""
