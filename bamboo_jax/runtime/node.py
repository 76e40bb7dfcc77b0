"""One node: its state and arrays, and how it runs one instruction.

It does not know the schedule, so the same node runs the first rows of a step
and those after a failure.
"""

from collections.abc import Callable, Mapping
import dataclasses
import time
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import (
    array_store as store_lib,
    programs as programs_lib,
    spec as spec_lib,
)
from bamboo_jax.runtime.wire import links as links_lib
from bamboo_jax.schedule import holdings as holdings_lib, instruction as instruction_lib

Op = instruction_lib.Op
Instruction = instruction_lib.Instruction

# Returns the named entries of a microbatch of the current step.
FeedFn = Callable[[int, tuple[str, ...]], Mapping[str, np.ndarray]]


class Clock:
  """The time of nodes whose layers sleep rather than compute.

  A real device runs its passes one after the other, and the dispatching thread
  may run ahead of it. A paced node has no device work: the thread that walks
  the rows of a process sleeps until the node's device would be free for the
  next instruction.

  walker   F0 to a   F0's output to b   b receives   F0 to b
  real     0.0 s     0.1                0.1003       0.1008
  clock    0.0       0.1                0.1          0.1       b is free at 0.2

  Delays of the walker itself are not charged, because a device would not have
  waited for it; time spent in a receive from another process is. Passes are
  recorded with their span on this clock, however busy the machine is. Its
  seconds are those of `perf_counter`; all nodes of a process share it.

  Attributes:
    now_secs: The latest time that has been waited for.
  """

  def __init__(self) -> None:
    self.now_secs = 0.0

  def catch_up(self) -> None:
    """Advances the clock to real time."""
    self.now_secs = max(self.now_secs, time.perf_counter())

  def wait_until(self, secs: float) -> None:
    """Blocks until `secs`; returns at once if it has passed."""
    _sleep_until(secs)
    self.now_secs = max(self.now_secs, secs)


@dataclasses.dataclass(frozen=True)
class Paced:
  """The result of a pass, ready at a given time, with its span on the clock."""

  result: base.PyTree
  start_secs: float
  end_secs: float

  def block_until_ready(self) -> None:
    """Blocks until that time; called by `jax.block_until_ready`."""
    jax.block_until_ready(self.result)
    _sleep_until(self.end_secs)


def _sleep_until(secs: float) -> None:
  left_secs = secs - time.perf_counter()
  if left_secs > 0:
    time.sleep(left_secs)


class Node:
  """A node of a pipeline; runs instructions on its device, or its mesh.

  Calls return before the device has finished, except where a link blocks.

  Attributes:
    programs: Programs of each stage that the node holds, as owner or replica.
    state: State of each of these stages.
    store: Arrays of the current step.
    free_secs: When its last paced pass ends, on the clock.
    slow_factor: Factor by which its passes are slowed down, 1 by default.
  """

  def __init__(
      self,
      node: base.NodeId,
      device: places.Place,
      *,
      links: links_lib.Links,
      clock: Clock,
      sends_host: bool = False,
  ) -> None:
    """Makes a node that holds no stage yet; see `store.StepArrays`."""
    self.node = node
    self.device = device
    self.programs: dict[base.StageId, programs_lib.StagePrograms] = {}
    self.state: dict[base.StageId, spec_lib.StageState] = {}
    self.store = store_lib.StepArrays(sends_host=sends_host)
    self.slow_factor = 1.0
    self._links = links
    self._clock = clock
    self.free_secs = 0.0
    self._scalars: dict[int, jax.Array] = {}
    self._token: Any = None
    self._feed: FeedFn

  def begin_step(self, step: base.StepId, feed: FeedFn, *, microbatches_per_share: int) -> None:
    """Drops the arrays of the previous step and prepares `step`."""
    self.store.clear()
    self._microbatches_per_share = microbatches_per_share
    self._number = step
    self._step = jax.device_put(np.uint32(step), places.whole(self.device))
    self._feed = feed

  def run(self, instruction: Instruction) -> base.PyTree:
    """Starts an instruction; the result is ready once it has finished.

    Blocks while paced passes before it are still running.
    """
    if self.free_secs > self._clock.now_secs:  # Of a paced node.
      self._clock.wait_until(self.free_secs)
    begin_secs = time.perf_counter()
    result, start_secs = self._start(instruction), self._clock.now_secs
    if self.slow_factor > 1.0 and not instruction.is_transfer:
      if self.free_secs <= start_secs:  # Not paced: the device takes its time.
        jax.block_until_ready(self._token)
        start_secs, self.free_secs = begin_secs, time.perf_counter()
      self.free_secs += (self.slow_factor - 1.0) * (self.free_secs - start_secs)
    if self.free_secs > self._clock.now_secs:
      return Paced(result, start_secs, self.free_secs)
    return result

  @property
  def is_free(self) -> bool:
    """Whether all passes have ended."""
    return time.perf_counter() >= self.free_secs and (self._token is None or self._token.is_ready())

  def wait(self) -> None:
    """Blocks until all passes have ended."""
    jax.block_until_ready(self._token)
    self._clock.wait_until(self.free_secs)
    self._clock.catch_up()

  def _start(self, instruction: Instruction) -> base.PyTree:
    key = (instruction.stage, instruction.microbatch)
    store = self.store
    match instruction.op:
      case Op.FORWARD:
        programs = self.programs[instruction.stage]
        outputs, saved = self._pass(programs.forward, *key)
        self._spend(programs.spec.pace.forward_ms, instruction)
        store.saved[key] = saved
        if outputs is not None:
          store.activations[key] = outputs
        return self._token
      case Op.REDUNDANT_FORWARD:
        programs = self.programs[instruction.stage]
        store.put_redundant(key, *self._pass(programs.redundant, *key))
        pace_ms = programs.spec.pace.forward_ms
        self._spend(pace_ms - programs.left_out_ms, instruction)
        return self._token
      case Op.BACKWARD:
        return self._backward(instruction)
    # A transfer.
    is_grad = instruction.op in (Op.SEND_GRAD, Op.RECV_GRAD)
    arrays = store.grads if is_grad else store.activations
    link = self.find_link(instruction)
    if instruction.is_send:
      value = store.send(arrays, key)
      link.send(value)
      return value
    arrays[key] = link.receive()
    if not isinstance(link, links_lib.LocalLink):
      self._clock.catch_up()
    return arrays[key]

  def evaluate(self, stage: base.StageId, inputs: base.PyTree, batch: base.PyTree) -> base.PyTree:
    """Returns the output of `stage` without dropout.

    That of the last stage is `layer.Loss.stack`.
    """
    programs, state = self.programs[stage], self._cast(stage)
    batch = {k: batch[k] for k in programs.spec.batch_keys}
    self._token, outputs = programs.evaluate(
        self._after(programs), state, self._put_data(inputs), self._put_data(batch)
    )
    return outputs

  def with_slots(self, stage: base.StageId, memory_kind: str) -> spec_lib.StageState:
    """Returns the state of a stage with its slots moved to a kind of memory."""
    state = self.state[stage]
    return state.replace(slots=places.move(state.slots, memory_kind))

  def put_state(self, stage: base.StageId, state: spec_lib.StageState) -> None:
    """Takes a copy of the state of a stage, from any device."""
    model = self.programs[stage].spec.model.name
    where = places.of_state(self.device, state, model)
    self.state[stage] = jax.device_put(state, where, may_alias=False)
    self.store.copies.pop(stage, None)  # Cast from the former state.

  def _cast(self, stage: base.StageId) -> spec_lib.StageState:
    """Returns the state as passes read it, the same for all of a step."""
    copies = self.store.copies
    if stage not in copies:
      copies[stage] = self.programs[stage].cast(self.state[stage])
    return copies[stage]

  def _pass(
      self, run: Callable[..., tuple[base.PyTree, ...]], stage: base.StageId, microbatch: int
  ) -> tuple[base.PyTree, list[spec_lib.Saved]]:
    """Runs a forward pass, redundant or not, of a microbatch."""
    # None on stage 0.
    inputs = self.store.activations.get(holdings_lib.input_of((stage, microbatch)))
    self._token, outputs, saved = run(
        self._after(self.programs[stage]),
        self._cast(stage),
        places.move(inputs, "device"),
        *self._data(stage, microbatch),
    )
    return outputs, saved

  def _data(self, stage: base.StageId, microbatch: int) -> tuple[base.PyTree, jax.Array, jax.Array]:
    keys = self.programs[stage].spec.batch_keys
    batch = self._put_data(dict(self._feed(microbatch, keys))) if keys else {}
    if microbatch not in self._scalars:
      self._scalars[microbatch] = jax.device_put(np.uint32(microbatch), places.whole(self.device))
    return batch, self._step, self._scalars[microbatch]

  def _put_data(self, value: base.PyTree) -> base.PyTree:
    return jax.device_put(value, places.of_data(self.device, value))

  def _backward(self, instruction: Instruction) -> jax.Array:
    stage, microbatch = instruction.stage, instruction.microbatch
    programs, state = self.programs[stage], self._cast(stage)
    # Numbered over all shares.
    share = base.ShareId(microbatch // self._microbatches_per_share)
    # Popped, as `backward` donates it.
    accumulator = self.store.accumulators.pop((stage, share), None)
    if accumulator is None:
      accumulator = programs.zeros(self._after(programs))
    inputs, saved, grad = self.store.take_inputs((stage, microbatch))
    # A redundant pass left some out.
    if any(one.residuals is None for one in saved):
      self._token, saved = programs.complete(
          self._after(programs), *(state, inputs, saved), *self._data(stage, microbatch)
      )
      self._spend(programs.left_out_ms, instruction)
    self._token, grad_inputs, accumulator = programs.backward(
        self._after(programs), state, inputs, saved, grad, accumulator
    )
    self._spend(programs.spec.pace.backward_ms, instruction)
    self.store.accumulators[stage, share] = accumulator
    self.store.accumulated.add((stage, microbatch))
    if stage > 0:
      self.store.grads[holdings_lib.input_of((stage, microbatch))] = grad_inputs
    return self._token  # Not the sums: the next pass donates them.

  def find_link(self, instruction: Instruction) -> links_lib.Link:
    """Returns the link of a transfer of this node."""
    return self._links.find(self.node, instruction)

  def _spend(self, ms: float, instruction: Instruction) -> None:
    """Lets a pass take at least `ms`, or what its jitter makes of that."""
    if not ms:
      return
    pace = self.programs[instruction.stage].spec.pace
    ms = pace.vary(ms, f"{self._number} {instruction}")
    self.free_secs = max(self.free_secs, self._clock.now_secs) + ms / 1e3

  def _after(self, programs: programs_lib.StagePrograms) -> jax.Array:
    if self._token is None:
      self._token = programs.token()
    return self._token
