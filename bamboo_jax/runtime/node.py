"""One node: its state and arrays, and how it runs one instruction.

It does not know the schedule, so the same node runs the first rows of a step
and those after a failure.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
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
from bamboo_jax.schedule import (
    channel as channel_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
)

Op = instruction_lib.Op
Instruction = instruction_lib.Instruction
Unit = tuple[spec_lib.StageSpec, programs_lib.UnitPrograms]
_empty = functools.partial(dataclasses.field, init=False, default_factory=dict)

# Returns the named entries of a microbatch of the current step.
FeedFn = Callable[[int, tuple[str, ...]], Mapping[str, np.ndarray]]


class Clock:
  """The time of nodes whose layers sleep rather than compute.

  A real device runs its passes one after the other, and the dispatching thread
  may run ahead of it. A paced node has no device work. Alone in its process it
  runs ahead all the same: what it sends is ready when its pass ends
  (`Paced`), and a pass begins when the one before it ends, or once its input
  has come. Of several nodes in a process the thread that walks the rows sleeps
  until the node's device would be free for the next instruction.

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
    self.now_secs = max(self.now_secs, time.perf_counter())

  def wait_until(self, secs: float) -> None:
    """Blocks until `secs`; returns at once if it has passed."""
    _sleep_until(secs)
    self.now_secs = max(self.now_secs, secs)


@dataclasses.dataclass(frozen=True)
class Paced:
  """The result of a pass, ready at a given time, with its span on the clock.

  Both `jax.block_until_ready` and reading it, if it is one array to be sent, wait until then.
  """

  result: base.PyTree
  start_secs: float
  end_secs: float

  def block_until_ready(self) -> None:
    jax.block_until_ready(self.result)
    _sleep_until(self.end_secs)

  @property
  def nbytes(self) -> int:
    return self.result.nbytes

  def copy_to_host_async(self) -> None:
    self.result.copy_to_host_async()

  def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
    self.block_until_ready()
    return np.asarray(self.result, dtype, copy=copy)


def _sleep_until(secs: float) -> None:
  left_secs = secs - time.perf_counter()
  if left_secs > 0:
    time.sleep(left_secs)


@dataclasses.dataclass(eq=False)
class Node:
  """A node of a pipeline; runs instructions on its device, or its mesh.

  Calls return before the device has finished, except where a link blocks. A
  stage is a range of units, and a pass runs the program of each in turn.

  Attributes:
    stages: All stages of the pipelines, held here or not.
    residuals: Where those of redundant passes wait, see `plan.residuals`.
    units: The units of the stages that the node holds, as owner or replica.
    state: State of the layers of these stages, by name.
    store: Arrays of the current step.
    free_secs: When its last paced pass ends, on the clock.
    slow_factor: Factor by which its passes are slowed down.
  """

  node: base.NodeId
  device: places.Place
  stages: Sequence[spec_lib.StageSpec]
  links: links_lib.Links
  clock: Clock
  programs: programs_lib.ProgramCache
  residuals: str = "host"
  store: store_lib.StepArrays = dataclasses.field(default_factory=store_lib.StepArrays)
  units: dict[base.StageId, Sequence[Unit]] = _empty()
  state: dict[str, spec_lib.LayerState] = _empty()
  free_secs: float = 0.0
  slow_factor: float = 1.0
  _numbers: dict[int, jax.Array] = _empty()
  _token: Any = None

  def load_programs(self, stage: base.StageId) -> None:
    """Takes the programs of a stage; compiles nothing yet."""
    units = self.stages[stage].units
    self.units[stage] = [(unit, self.programs.get(unit, self.device)) for unit in units]

  def begin_step(self, step: base.StepId, feed: FeedFn, *, microbatches_per_share: int) -> None:
    """Drops the arrays of the previous step and prepares `step`."""
    self.store.clear()
    self._microbatches_per_share = microbatches_per_share
    self._number, self._feed = step, feed
    self._step = self._put(np.uint32(step))

  def run(self, instruction: Instruction) -> base.PyTree:
    """Starts an instruction; the result is ready once it has finished.

    With other nodes in the process, blocks while paced passes before it are still
    running.
    """
    clock, free_secs = self.clock, self.free_secs
    if free_secs > clock.now_secs and self.links.exchange is None:  # Of a paced node.
      clock.wait_until(free_secs)
    begin_secs = time.perf_counter()
    result, start_secs = self._start(instruction), max(clock.now_secs, free_secs)
    if self.slow_factor > 1.0 and not instruction.is_transfer:
      if self.free_secs == free_secs:  # Not paced: the device takes its time.
        jax.block_until_ready(self._token)
        start_secs = max(begin_secs, free_secs)
        self.free_secs = start_secs + time.perf_counter() - begin_secs
      self.free_secs += (self.slow_factor - 1.0) * (self.free_secs - start_secs)
    if self.free_secs > clock.now_secs:
      return Paced(result, start_secs, self.free_secs)
    return result

  @property
  def is_free(self) -> bool:
    return time.perf_counter() >= self.free_secs and (self._token is None or self._token.is_ready())

  def wait(self) -> None:
    jax.block_until_ready(self._token)
    self.clock.wait_until(self.free_secs)
    self.clock.catch_up()

  def _start(self, instruction: Instruction) -> base.PyTree:
    key = (instruction.stage, instruction.microbatch)
    store, stage = self.store, self.stages[instruction.stage]
    match instruction.op:
      case Op.FORWARD | Op.REDUNDANT_FORWARD as op:
        is_redundant = op is Op.REDUNDANT_FORWARD
        outputs, store.saved[key] = self._forward(*key, is_redundant=is_redundant)
        if outputs is not None:  # One that is there, maybe elsewhere, has the same bits.
          store.activations.setdefault(key, outputs)
        left_out_ms = self._left_out_ms(stage) if is_redundant else 0.0
        return self._spend(stage.pace.forward_ms - left_out_ms, instruction)
      case Op.BACKWARD:
        self._backward(instruction)
        return self._spend(stage.pace.backward_ms, instruction)
    # A transfer.
    channel = self.find_channel(instruction)
    is_remote = self.links.find_remote(channel) is not None
    arrays = store.grads if channel.kind == "gradients" else store.activations
    if instruction.is_send:
      value = sent = store.send(arrays, key)
      if is_remote and self.free_secs > self.clock.now_secs:  # Its pass still runs.
        sent = jax.tree.map(lambda a: Paced(a, self.free_secs, self.free_secs), value)
      self.links.send(channel, sent)
      return value
    arrays[key] = self.links.receive(channel, stage.outputs)
    if is_remote:
      self.clock.catch_up()
    return arrays[key]

  def find_channel(self, instruction: Instruction) -> channel_lib.Channel:
    """Returns the channel that this node uses for a transfer."""
    return instruction.transfer(self.node).channel

  def evaluate(self, stage: base.StageId, inputs: base.PyTree, batch: base.PyTree) -> base.PyTree:
    """Returns the output of `stage` without dropout.

    That of the last stage is `layer.Loss.stack`.
    """
    inputs, batch = map(self._put, (inputs, self.stages[stage].pick(batch)))
    for unit in self.units[stage]:
      self._token, inputs = self._run("evaluate", unit, inputs, batch)
    return inputs

  def update(
      self,
      unit: spec_lib.StageSpec,
      total: spec_lib.Accumulator,
      scale: float,
      num_microbatches: int,
      *,
      donate: bool = True,
  ) -> spec_lib.LayerState:
    """Returns the state of a unit after the step.

    Args:
      total: Final gradients, multiplied by `scale` here.
      donate: Whether parameters and slots of the former state are donated.
    """
    old, programs = spec_lib.take(unit, self.state), self.programs.get(unit, self.device)
    scalars = map(self._put, (np.float32(scale), np.float32(num_microbatches)))
    params, slots = spec_lib.drop_frozen(unit, old.params), places.move(old.slots, "device")
    run = programs.update if donate else programs.propose
    return spec_lib.add_frozen(run(params, slots, total, *scalars), old)

  def move_slots(self, stage: base.StageId) -> None:
    """Moves the slots of a stage to host memory."""
    for name in self.stages[stage].names:
      layer = self.state[name]
      self.state[name] = layer.replace(slots=places.move(layer.slots, "pinned_host"))

  def layers_of(self, stage: base.StageId) -> dict[str, spec_lib.LayerState]:
    """Returns the state of the layers of a stage that it has."""
    return {name: self.state[name] for name in self.stages[stage].names if name in self.state}

  def put_state(self, layers: Mapping[str, spec_lib.LayerState]) -> None:
    """Takes a copy of the state of some layers, from any device."""
    where = places.of_state(self.device, layers, self.stages[-1].model.name)
    self.state |= jax.device_put(layers, where, may_alias=False)
    self.store.copies.clear()  # Cast from the former state.

  def _forward(
      self, stage: base.StageId, microbatch: int, *, is_redundant: bool
  ) -> tuple[base.PyTree, list[store_lib.Kept]]:
    """Runs a forward pass; returns the outputs, and what it keeps of each unit.

    The results of a redundant one are where `plan.residuals` says. It skips the
    unit with the loss, because no other unit waits for it: if the owner dies,
    `_backward` runs it.
    """
    data = self._data(stage, microbatch)
    # None on stage 0.
    inputs = self.store.activations.get(holdings_lib.input_of((stage, microbatch)))
    inputs, outputs = places.move(inputs, "device"), None
    kept: list[store_lib.Kept] = []
    for unit in self.units[stage]:
      held = outputs
      if is_redundant and unit[0].is_last:
        return None, [*kept, (held, None)]
      name = "redundant" if is_redundant and self.residuals == "host" else "forward"
      done = self._run(name, unit, inputs, *data)
      # The next unit reads what is on the device.
      (self._token, inputs), (outputs, saved) = done[:2], done[-2:]
      kept.append((held, saved))
    return outputs, kept

  def _run(
      self, name: str, unit: Unit, inputs: base.PyTree, batch: base.PyTree, *numbers: jax.Array
  ) -> tuple[base.PyTree, ...]:
    """Runs a forward pass of a unit; in training `numbers` are step and microbatch."""
    spec, programs = unit
    stats = tuple(self.state[name].stats for name in spec.names)
    if numbers:
      numbers = (*numbers, self._put_number(spec.first))
    done: tuple[base.PyTree, ...] = getattr(programs, name)(
        self._after(), self._cast(*unit), stats, inputs, spec.pick(batch), *numbers
    )
    return done

  def _cast(self, unit: spec_lib.StageSpec, programs: programs_lib.UnitPrograms) -> Any:
    """Returns the parameters of a unit as passes read them, the same for all of a step."""
    copies = self.store.copies
    if unit.first not in copies:
      copies[unit.first] = programs.cast(spec_lib.take(unit, self.state).params)
    return copies[unit.first]

  def _data(self, stage: base.StageId, microbatch: int) -> tuple[base.PyTree, jax.Array, jax.Array]:
    keys = self.stages[stage].batch_keys
    batch = self._put(dict(self._feed(microbatch, keys))) if keys else {}
    return batch, self._step, self._put_number(microbatch)

  def _put_number(self, number: int) -> jax.Array:
    if number not in self._numbers:
      self._numbers[number] = self._put(np.uint32(number))
    return self._numbers[number]

  def _put(self, value: base.PyTree) -> base.PyTree:
    return jax.device_put(value, places.of_data(self.device, value))

  def _backward(self, instruction: Instruction) -> None:
    stage, microbatch = key = instruction.stage, instruction.microbatch
    store, sums = self.store, self.store.accumulators
    # Numbered over all shares.
    share = base.ShareId(microbatch // self._microbatches_per_share)
    # None at the ends.
    inputs = store.activations.pop(holdings_lib.input_of(key), None)
    taken = (inputs, store.saved.pop(key), store.grads.pop(key, None))
    inputs, kept, grad = places.move(taken, "device")
    units = zip(self.units[stage], kept, strict=True)
    for (unit, programs), (held, saved) in reversed([*units]):
      given = inputs if held is None else held
      if saved is None:  # A redundant pass left it out.
        data = self._data(stage, microbatch)
        self._token, _, saved = self._run("forward", (unit, programs), given, *data)
        self._spend(self._left_out_ms(self.stages[stage]), instruction)
      # Popped, as the program donates it.
      total = sums.pop((unit.first, share), None)
      if total is None:
        total = programs.zeros(self._after())
      self._token, grad, sums[unit.first, share] = programs.backward(
          *(self._after(), self._cast(unit, programs), given, saved, grad, total)
      )
    store.accumulated.add(key)
    if stage > 0:
      store.grads[holdings_lib.input_of(key)] = grad

  def _spend(self, ms: float, instruction: Instruction) -> jax.Array:
    """Lets a pass take at least `ms`, or what its jitter makes of that.

    Returns its token, not the sums: the next pass donates them.
    """
    if ms:
      pace = self.stages[instruction.stage].pace
      ms = pace.vary(ms, f"{self._number} {instruction}")
      self.free_secs = max(self.free_secs, self.clock.now_secs) + ms / 1e3
    return self._after()

  def _left_out_ms(self, stage: spec_lib.StageSpec) -> float:
    """Returns the least time of the pass that a redundant one skips; 0 if none."""
    unit = stage.units[-1]
    return unit.pace.forward_ms if unit.is_last else 0.0

  def _after(self) -> jax.Array:
    if self._token is None:
      self._token = jax.device_put(np.zeros((1,), np.int8), places.whole(self.device))
    return self._token
