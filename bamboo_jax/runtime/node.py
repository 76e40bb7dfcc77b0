"""One node: what it holds, and how it runs one instruction.

A node knows its stages' programs and state, the links that end at it, and what
the instructions so far have left behind. It does not know the schedule, so the
same node runs the first rows of a step and those after a failure.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from bamboo_jax.runtime import link as link_lib
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.runtime import stage as stage_lib
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op
Instruction = instruction_lib.Instruction
PyTree = Any

# Returns the named entries of a microbatch of the current step.
FeedFn = Callable[[int, tuple[str, ...]], Mapping[str, np.ndarray]]


class Node:
  """A node of a pipeline; runs instructions on its device.

  Calls return before the device has finished, except where a link blocks.

  Attributes:
    node: Number of the node.
    device: The device that it computes on.
    programs: The programs of each stage that the node owns.
    state: Parameters, optimizer slots and statistics of each of these stages.
    outgoing: Links that start here, by name (see `link_name`).
    incoming: Links that end here.
    accumulators: Sums of this step, by stage and share.
  """

  def __init__(
      self,
      node: int,
      device: jax.Device,
      *,
      programs: Mapping[int, stage_lib.StagePrograms],
      num_stages: int,
  ) -> None:
    self.node = node
    self.device = device
    self.programs = dict(programs)
    self.state: dict[int, spec_lib.StageState] = {}
    self.outgoing: dict[str, link_lib.Link] = {}
    self.incoming: dict[str, link_lib.Link] = {}
    self.accumulators: dict[tuple[int, int], spec_lib.Accumulator] = {}
    self._last_stage = num_stages - 1
    self._scalars: dict[int, jax.Array] = {}
    self._activations: dict[tuple[int, int], PyTree] = {}
    self._grads: dict[tuple[int, int], PyTree] = {}
    self._saved: dict[tuple[int, int], spec_lib.Saved] = {}
    self._batches: dict[tuple[int, int], PyTree] = {}
    self._token = None
    self._feed: FeedFn | None = None

  def begin_step(
      self, step: int, feed: FeedFn, *, microbatches_per_share: int
  ) -> None:
    """Forgets the step before and prepares `step`.

    Args:
      step: Index of the step, from 0.
      feed: Returns the data of this step.
      microbatches_per_share: Number of microbatches summed in one accumulator.
    """
    self.clear()
    self._microbatches_per_share = microbatches_per_share
    self._step = jax.device_put(np.uint32(step), self.device)
    self._feed = feed

  def clear(self) -> None:
    """Forgets all but the state."""
    for held in (self._activations, self._grads, self._saved, self._batches):
      held.clear()
    self.accumulators.clear()

  def run(self, instruction: Instruction) -> PyTree:
    """Starts an instruction; returns what is ready once it has finished."""
    stage, microbatch = instruction.stage, instruction.microbatch
    key = (stage, microbatch)
    match instruction.op:
      case Op.FORWARD:
        return self._forward(stage, microbatch)
      case Op.BACKWARD:
        return self._backward(stage, microbatch)
      case Op.SEND_ACTIVATION:
        value = self._activations.pop(key)
        self._link(self.outgoing, instruction).send(value)
        return value
      case Op.SEND_GRAD:
        value = self._grads.pop(key)
        self._link(self.outgoing, instruction).send(value)
        return value
      case Op.RECV_ACTIVATION:
        value = self._link(self.incoming, instruction).receive()
        self._activations[key] = value
        return value
      case Op.RECV_GRAD:
        value = self._link(self.incoming, instruction).receive()
        self._grads[key] = value
        return value
      case _:
        raise ValueError(f"Node {self.node} cannot run {instruction}.")

  def evaluate(self, stage: int, inputs: PyTree, batch: PyTree) -> PyTree:
    """Returns the output of `stage` without dropout; [2] loss if it is last."""
    programs, state = self.programs[stage], self.state[stage]
    batch = {k: batch[k] for k in programs.spec.batch_keys}
    self._token, outputs = programs.evaluate(
        self._after(programs),
        state.params,
        state.stats,
        jax.device_put(inputs, self.device),
        jax.device_put(batch, self.device),
    )
    return outputs

  def _forward(self, stage: int, microbatch: int) -> jax.Array:
    programs, state = self.programs[stage], self.state[stage]
    batch = self._feed(microbatch, programs.spec.batch_keys)
    self._token, outputs, saved = programs.forward(
        self._after(programs),
        state.params,
        state.stats,
        self._activations.get((stage - 1, microbatch)),
        jax.device_put(dict(batch), self.device),
        self._step,
        self._scalar(microbatch),
    )
    self._saved[stage, microbatch] = saved
    if stage < self._last_stage:
      self._activations[stage, microbatch] = outputs
    return self._token

  def _backward(self, stage: int, microbatch: int) -> jax.Array:
    programs, state = self.programs[stage], self.state[stage]
    share = microbatch // self._microbatches_per_share
    accumulator = self.accumulators.pop((stage, share), None)
    if accumulator is None:
      accumulator = programs.zeros()
    self._token, grad, accumulator = programs.backward(
        self._after(programs),
        state.params,
        self._activations.pop((stage - 1, microbatch), None),
        self._saved.pop((stage, microbatch)),
        self._grads.pop((stage, microbatch), None),
        accumulator,
    )
    self.accumulators[stage, share] = accumulator
    if stage > 0:
      self._grads[stage - 1, microbatch] = grad
    return self._token

  def _after(self, programs: stage_lib.StagePrograms) -> jax.Array:
    if self._token is None:
      self._token = programs.token()
    return self._token

  def _scalar(self, microbatch: int) -> jax.Array:
    if microbatch not in self._scalars:
      self._scalars[microbatch] = jax.device_put(
          np.uint32(microbatch), self.device
      )
    return self._scalars[microbatch]

  def _link(
      self, links: Mapping[str, link_lib.Link], instruction: Instruction
  ) -> link_lib.Link:
    sends = instruction.op in (Op.SEND_ACTIVATION, Op.SEND_GRAD)
    ends = (self.node, instruction.peer)
    source, destination = ends if sends else ends[::-1]
    kind = instruction.op.value[1]
    name = link_name(kind, instruction.stage, source, destination)
    return links[name]


def link_name(kind: str, stage: int, source: int, destination: int) -> str:
  """Returns the name of a link.

  Args:
    kind: "A" for the output of `stage`, "G" for the gradient with respect to
      it.
    stage: Stage whose output has the shape of what the link carries.
    source: Node that sends.
    destination: Node that receives.
  """
  return f"{kind}{stage}:{source}>{destination}"
