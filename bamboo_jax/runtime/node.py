"""One node: its state and arrays, and how it runs one instruction.

It does not know the schedule, so the same node runs the first rows of a step
and those after a failure.
"""

from collections.abc import Callable, Mapping, Sequence
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
Unit = tuple[spec_lib.StageSpec, programs_lib.UnitPrograms]

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

  Calls return before the device has finished, except where a link blocks. A
  stage is a list of units, and a pass runs the program of each in turn.

  Attributes:
    specs: The stages that the node holds, as owner or replica.
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
      programs: programs_lib.ProgramCache,
      residuals: str = "host",
      sends_host: bool = False,
  ) -> None:
    """Makes a node that holds no stage yet.

    Args:
      residuals: Where those of redundant passes wait, see `plan.residuals`.
      sends_host: See `array_store.StepArrays`.
    """
    self.node = node
    self.device = device
    self.specs: dict[base.StageId, spec_lib.StageSpec] = {}
    self.state: dict[base.StageId, spec_lib.StageState] = {}
    self.store = store_lib.StepArrays(sends_host=sends_host)
    self.slow_factor = 1.0
    self._links = links
    self._clock = clock
    self.free_secs = 0.0
    self._programs, self._residuals = programs, residuals
    self._units: dict[base.StageId, Sequence[Unit]] = {}
    self._numbers: dict[int, jax.Array] = {}
    self._token: Any = None
    self._feed: FeedFn

  def load_programs(self, stage: base.StageId, spec: spec_lib.StageSpec) -> None:
    """Takes the programs of a stage; compiles nothing yet."""
    units = [(unit, self._programs.get(unit, self.device)) for unit in spec.units]
    self.specs[stage], self._units[stage] = spec, units

  def units(self, stage: base.StageId) -> Sequence[Unit]:
    """Returns the units of a stage, in order, with their programs."""
    return self._units[stage]

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
        outputs, saved = self._forward(*key)
        self._spend(self.specs[instruction.stage].pace.forward_ms, instruction)
        store.saved[key] = saved
        if outputs is not None:
          store.activations[key] = outputs
        return self._token
      case Op.REDUNDANT_FORWARD:
        store.put_redundant(key, *self._forward(*key, is_redundant=True))
        pace_ms = self.specs[instruction.stage].pace.forward_ms
        self._spend(pace_ms - self._left_out_ms(instruction.stage), instruction)
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
    state, inputs = self._cast(stage), self._put_data(inputs)
    batch = self._put_data({k: batch[k] for k in self.specs[stage].batch_keys})
    for unit, programs in self._units[stage]:
      self._token, inputs = self._run(programs.evaluate, unit, state, inputs, batch)
    return inputs

  def update(
      self,
      stage: base.StageId,
      total: spec_lib.Accumulator,
      scale: float,
      num_microbatches: int,
      *,
      donate: bool = True,
  ) -> spec_lib.StageState:
    """Returns the state of a stage after the step.

    Args:
      total: Final gradients, multiplied by `scale` here.
      donate: Whether parameters and slots of the former state are donated.
    """
    state, parts = self.with_slots(stage, "device"), []
    scalars = (np.float32(scale), np.float32(num_microbatches))
    scalars = jax.device_put(scalars, places.whole(self.device))
    for unit, programs in self._units[stage]:
      old, sums = spec_lib.to_unit(state, unit), spec_lib.to_unit(total, unit)
      run = programs.update if donate else programs.propose
      new = run(spec_lib.drop_frozen(unit, old.params), old.slots, sums, *scalars)
      parts.append(spec_lib.add_frozen(new, old))
    return self._join(stage, parts)

  def norms(self, stage: base.StageId, total: spec_lib.Accumulator) -> list[jax.Array]:
    """Returns the squared gradient norms of the layers, one array for each unit."""
    return [p.norms(spec_lib.to_unit(total, unit)) for unit, p in self._units[stage]]

  def with_slots(self, stage: base.StageId, memory_kind: str) -> spec_lib.StageState:
    """Returns the state of a stage with its slots moved to a kind of memory."""
    state = self.state[stage]
    return state.replace(slots=places.move(state.slots, memory_kind))

  def put_state(self, stage: base.StageId, state: spec_lib.StageState) -> None:
    """Takes a copy of the state of a stage, from any device."""
    model = self.specs[stage].model.name
    where = places.of_state(self.device, state, model)
    self.state[stage] = jax.device_put(state, where, may_alias=False)
    self.store.copies.pop(stage, None)  # Cast from the former state.

  def _cast(self, stage: base.StageId) -> spec_lib.StageState:
    """Returns the state as passes read it, the same for all of a step."""
    copies = self.store.copies
    if stage not in copies:
      state = self.state[stage]
      params: dict[str, base.PyTree] = {}
      for unit, programs in self._units[stage]:
        own = programs.cast(spec_lib.to_unit(state, unit).params)
        params |= zip(unit.names, own, strict=True)
      copies[stage] = state.replace(params=params)
    return copies[stage]

  def _forward(
      self, stage: base.StageId, microbatch: int, *, is_redundant: bool = False
  ) -> tuple[base.PyTree, list[spec_lib.Saved]]:
    """Runs a forward pass; returns the outputs, and the saved values of each unit.

    The results of a redundant one are where `plan.residuals` says. It skips the
    unit with the loss, because no other unit waits for it: if the owner dies,
    `_complete` runs it.
    """
    state, data = self._cast(stage), self._data(stage, microbatch)
    # None on stage 0.
    inputs = self.store.activations.get(holdings_lib.input_of((stage, microbatch)))
    inputs, outputs = places.move(inputs, "device"), None
    kept: list[spec_lib.Saved] = []
    for unit, programs in self._units[stage]:
      held = outputs  # The node keeps the input of the first unit separately.
      if is_redundant and unit.is_last:
        return None, [*kept, spec_lib.Saved(held, None, None, None)]
      if is_redundant and self._residuals == "host":
        done = self._run(programs.redundant, unit, state, inputs, *data)
        self._token, inputs, outputs, saved = done
      else:
        self._token, outputs, saved = self._run(programs.forward, unit, state, inputs, *data)
        inputs = outputs
      kept.append(saved.replace(inputs=held))
    return outputs, kept

  def _complete(
      self,
      stage: base.StageId,
      microbatch: int,
      inputs: base.PyTree,
      kept: Sequence[spec_lib.Saved],
  ) -> list[spec_lib.Saved]:
    """Returns `kept` with the residuals that a redundant forward pass omits."""
    state, data = self._cast(stage), self._data(stage, microbatch)
    done = []
    for (unit, programs), saved in zip(self._units[stage], kept, strict=True):
      if saved.residuals is None:
        given = inputs if saved.inputs is None else saved.inputs
        self._token, _, new = self._run(programs.forward, unit, state, given, *data)
        saved = new.replace(inputs=saved.inputs)
      done.append(saved)
    return done

  def _run(
      self,
      program: Callable[..., tuple[base.PyTree, ...]],
      unit: spec_lib.StageSpec,
      state: spec_lib.StageState,
      inputs: base.PyTree,
      batch: base.PyTree,
      *numbers: jax.Array,
  ) -> tuple[base.PyTree, ...]:
    """Runs a forward pass of a unit; in training `numbers` are step and microbatch."""
    own = spec_lib.to_unit(state, unit)
    if numbers:
      numbers = (*numbers, self._put_number(unit.first))
    batch = {key: batch[key] for key in unit.batch_keys}
    return program(self._after(), own.params, own.stats, inputs, batch, *numbers)

  def _join(self, stage: base.StageId, parts: Sequence[base.PyTree]) -> base.PyTree:
    return spec_lib.from_units(parts, self.specs[stage].units)

  def _data(self, stage: base.StageId, microbatch: int) -> tuple[base.PyTree, jax.Array, jax.Array]:
    keys = self.specs[stage].batch_keys
    batch = self._put_data(dict(self._feed(microbatch, keys))) if keys else {}
    return batch, self._step, self._put_number(microbatch)

  def _put_number(self, number: int) -> jax.Array:
    """Returns a microbatch, or the index of a layer, on the device."""
    if number not in self._numbers:
      self._numbers[number] = jax.device_put(np.uint32(number), places.whole(self.device))
    return self._numbers[number]

  def _put_data(self, value: base.PyTree) -> base.PyTree:
    return jax.device_put(value, places.of_data(self.device, value))

  def _backward(self, instruction: Instruction) -> jax.Array:
    stage, microbatch = instruction.stage, instruction.microbatch
    state, units = self._cast(stage), self._units[stage]
    # Numbered over all shares.
    share = base.ShareId(microbatch // self._microbatches_per_share)
    # Popped, as the programs donate it.
    total = self.store.accumulators.pop((stage, share), None)
    if total is None:
      total = self._join(stage, [p.zeros(self._after()) for _, p in units])
    inputs, kept, grad = self.store.take_inputs((stage, microbatch))
    # A redundant pass left some out.
    if any(one.residuals is None for one in kept):
      kept = self._complete(stage, microbatch, inputs, kept)
      self._spend(self._left_out_ms(stage), instruction)
    parts: list[base.PyTree] = []
    for (unit, programs), saved in zip(reversed(units), reversed(kept), strict=True):
      self._token, grad, part = programs.backward(
          *(self._after(), spec_lib.to_unit(state, unit).params),
          inputs if unit is units[0][0] else saved.inputs,
          saved.replace(inputs=None),  # As it was traced.
          *(grad, spec_lib.to_unit(total, unit)),
      )
      parts.insert(0, part)  # In model order again.
    self._spend(self.specs[stage].pace.backward_ms, instruction)
    self.store.accumulators[stage, share] = self._join(stage, parts)
    self.store.accumulated.add((stage, microbatch))
    if stage > 0:
      self.store.grads[holdings_lib.input_of((stage, microbatch))] = grad
    return self._token  # Not the sums: the next pass donates them.

  def find_link(self, instruction: Instruction) -> links_lib.Link:
    """Returns the link of a transfer of this node."""
    return self._links.find(self.node, instruction)

  def _spend(self, ms: float, instruction: Instruction) -> None:
    """Lets a pass take at least `ms`, or what its jitter makes of that."""
    if not ms:
      return
    pace = self.specs[instruction.stage].pace
    ms = pace.vary(ms, f"{self._number} {instruction}")
    self.free_secs = max(self.free_secs, self._clock.now_secs) + ms / 1e3

  def _left_out_ms(self, stage: base.StageId) -> float:
    """Returns the least time of the pass that a redundant one skips; 0 if none."""
    unit, _ = self._units[stage][-1]
    return unit.pace.forward_ms if unit.is_last else 0.0

  def _after(self) -> jax.Array:
    """Returns the token of the last program of the row."""
    if self._token is None:
      self._token = jax.device_put(np.zeros((1,), np.int8), places.whole(self.device))
    return self._token
