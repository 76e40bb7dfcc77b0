"""Programs that a node runs for the units of a stage, compiled ahead.

They are local: no program contains a collective, so the death of a peer cannot
make one fail. The values from a forward to its backward pass are explicit
(`spec.Saved`), without parameters and stage inputs, which the node keeps once.

XLA:CPU may run two programs of one device concurrently. Every program of a row
therefore takes `after`, a token of its predecessor in the row, and returns a
token, `done`. So a device runs its row in order, as one GPU stream would, and
the token tells when an instruction has finished.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import functions as functions_lib, spec as spec_lib

# By name: the function, the positions of donated arguments, and where arguments
# and results lie (`places`): as (s)tate, as (d)ata, or on (a)ll devices.
_PROGRAMS = {
    "cast": ("cast", (), "s", "s"),
    "forward": ("forward", (), "assddaaa", "add"),
    "redundant": ("redundant", (), "assddaaa", "addd"),
    "backward": ("backward", (5,), "asddds", "ads"),
    "evaluate": ("evaluate", (), "assdd", "ad"),
    "update": ("update", (0, 1), "sssaa", "s"),
    "propose": ("update", (), "sssaa", "s"),
    "norms": ("norms", (), "s", "a"),
    "zeros": ("zeros", (), "a", "s"),
}


class KindPrograms:
  """The programs of a kind of unit, traced once and compiled by device.

  `programs["forward", device]` compiles it if need be. Calls take positional
  arguments, return at once, and the arrays become ready later:

    cast(params) -> those that the passes below take in another dtype, else None
    forward(after, params, stats, inputs, batch, step, microbatch, index)
        -> (done, outputs, saved)
    redundant: the same as forward
        -> (done, outputs, outputs and saved in host memory)
    backward(after, params, inputs, saved, grad, accumulator)
        -> (done, grad_inputs, accumulator); donates the accumulator
    evaluate(after, params, stats, inputs, batch) -> (done, outputs or loss)
    update(params, slots, total, scale, num_microbatches)
        -> state; donates params and slots; both without frozen parameters
    propose: the same as update, but donates nothing
    norms(total) -> float32 [layers], squared norms of the gradients
    zeros(after) -> accumulator

  `step`, `microbatch` and `index` (of the first layer) are uint32 scalars,
  `scale` and `num_microbatches` are float32. `grad` is None for the last unit,
  `inputs` and `grad_inputs` are None for the first.
  """

  def __init__(self, unit: spec_lib.StageSpec) -> None:
    self.unit = unit
    self._functions = functions = functions_lib.UnitFunctions(unit)
    # `keep_unused`: `after` only orders programs.
    self._jitted = {
        name: jax.jit(getattr(functions, function), donate_argnums=donated, keep_unused=True)
        for name, (function, donated, *_) in _PROGRAMS.items()
    }
    self._compiled: dict[tuple[str, places.Place], Any] = {}

  @property
  def copy_bytes(self) -> int:
    """Size of the result of `cast`; 0 if passes read the parameters."""
    copies, params = self._functions.copies, self.unit.state.params
    pairs = zip(*map(jax.tree.leaves, (copies, params)), strict=True)
    return spec_lib.nbytes([c for c, p in pairs if c.dtype != p.dtype])

  @property
  def saved(self) -> spec_lib.Saved:
    """Shapes of the values that a forward pass keeps."""
    return _shapes(self._trace("forward"))[2]

  def __getitem__(self, key: tuple[str, places.Place]) -> Any:
    if key not in self._compiled:
      name, place = key
      if not isinstance(place, jax.sharding.Mesh):
        self._compiled[key] = self._trace(name, place).lower().compile()
      elif name == "redundant":
        self._compiled[key] = _keep_on_host(self["forward", place])
      else:
        self._compiled[key] = self._compile_for_mesh(name, place)
    return self._compiled[key]

  def cast(self, params: functions_lib.Layers, place: places.Place) -> functions_lib.Layers:
    """Returns parameters as passes read them; may be the same arrays."""
    if not self.copy_bytes:
      return params
    copies = self["cast", place](params)
    return jax.tree.map(lambda own, copy: own if copy is None else copy, params, copies)

  def trace(self) -> None:
    """Traces all programs; needs no device, unlike compiling."""
    for name in _PROGRAMS:
      self._trace(name)

  def traced(self, name: str, place: places.Place | None = None) -> jax.stages.Traced:
    """Returns a program as traced for a place, by default a device of this process."""
    return self._trace(name, place or jax.local_devices()[0])

  def _trace(self, name: str, place: places.Place | None = None) -> jax.stages.Traced:
    with self._functions.lock:
      if place is None:
        return self._jitted[name].trace(*self._arguments(name))
      return self._jitted[name].trace(*self._place_arguments(name, place))

  def _compile_for_mesh(self, name: str, mesh: jax.sharding.Mesh) -> Any:
    """Compiles a program with the output sharding that its readers expect."""
    function, donated, _, kinds = _PROGRAMS[name]
    with self._functions.lock:
      results = _shapes(self._trace(name, mesh))
      where = self._arrange(mesh, kinds, results if len(kinds) > 1 else (results,))
      program = jax.jit(
          getattr(self._functions, function),
          donate_argnums=donated,
          keep_unused=True,
          out_shardings=where if len(kinds) > 1 else where[0],
      )
      lowered = program.lower(*self._place_arguments(name, mesh))
    return lowered.compile()

  def _place_arguments(self, name: str, place: places.Place) -> tuple[base.PyTree, ...]:
    arguments = self._arguments(name)
    where = self._arrange(place, _PROGRAMS[name][2], arguments)
    put = lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s)
    return jax.tree.map(put, arguments, where)

  def _arrange(
      self, place: places.Place, kinds: str, trees: Sequence[base.PyTree]
  ) -> tuple[base.PyTree, ...]:
    arrange = {
        "a": lambda t: jax.tree.map(lambda _: places.whole(place), t),
        "d": lambda t: places.of_data(place, t),
        "s": lambda t: places.of_state(place, t, self.unit.model.name),
    }
    pairs = zip(kinds, trees, strict=True)
    return tuple(arrange[kind](tree) for kind, tree in pairs)

  def _arguments(self, name: str) -> tuple[base.PyTree, ...]:
    unit, scalar = self.unit, jax.ShapeDtypeStruct((), np.uint32)
    state = spec_lib.to_unit(unit.state, unit)
    total = spec_lib.to_unit(unit.accumulator, unit)
    token = jax.eval_shape(functions_lib.make_token)
    batch = {k: unit.batch[k] for k in unit.batch_keys}
    copies = self._functions.copies
    passes = (token, copies, state.stats, unit.inputs, batch)
    match name:
      case "cast":
        return (state.params,)
      case "forward" | "redundant":
        return passes + (scalar, scalar, scalar)
      case "backward":
        grad = unit.outputs
        return (token, copies, unit.inputs, self.saved, grad, total)
      case "evaluate":
        return passes
      case "update" | "propose":
        scale = jax.ShapeDtypeStruct((), np.float32)
        params = spec_lib.drop_frozen(unit, state.params)
        return (params, state.slots, total, scale, scale)
      case "norms":
        return (total,)
    return (token,)


def _shapes(traced: jax.stages.Traced) -> Any:
  return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), traced.out_info)


def _keep_on_host(forward: Any) -> Any:
  """Returns the pass `forward`, with copies of its results in host memory."""

  def run(*args: base.PyTree) -> tuple[base.PyTree, ...]:
    done, outputs, saved = forward(*args)
    return (done, outputs, *places.move((outputs, saved), "pinned_host"))

  return run


class StagePrograms:
  """Runs the passes of a stage on a device, unit by unit."""

  def __init__(
      self,
      spec: spec_lib.StageSpec,
      kinds: Iterable[KindPrograms],
      device: places.Place,
      *,
      residuals: str = "host",
  ) -> None:
    """Takes the programs of the kind of each unit of `spec`."""
    self.spec, self.device, self._residuals = spec, device, residuals
    self._units = tuple(zip(spec.units, kinds, strict=True))
    self._indices: list[jax.Array] = []

  def compile(self, names: Iterable[str]) -> None:
    """Compiles programs; takes seconds, and may run in any thread."""
    for name in names:
      if name == "redundant" and self._residuals != "host":
        continue  # Those of forward passes run.
      for unit, programs in self._units:
        is_left_out = name == "redundant" and unit.is_last
        if not is_left_out and (name != "cast" or programs.copy_bytes):
          programs[name, self.device]

  def trace(self) -> None:
    """Traces the model's code and the optimizer's; compiling finds the traces."""
    for _, programs in self._units:
      for name in ("forward", "backward", "update"):
        programs.traced(name, self.device)

  @property
  def left_out_ms(self) -> float:
    """Least time of the forward pass that `redundant` skips; 0 if none."""
    unit, _ = self._units[-1]
    return unit.pace.forward_ms if unit.is_last else 0.0

  def token(self) -> jax.Array:
    """Returns the token that the first program of a row waits for."""
    return jax.device_put(np.zeros((1,), np.int8), places.whole(self.device))

  def zeros(self, after: jax.Array) -> spec_lib.Accumulator:
    """Returns the accumulator of a share before its first microbatch."""
    return self._join(p["zeros", self.device](after) for _, p in self._units)

  def cast(self, state: spec_lib.StageState) -> spec_lib.StageState:
    """Returns the state with parameters in the dtypes that passes read."""
    params: dict[str, base.PyTree] = {}
    for unit, programs in self._units:
      own = spec_lib.to_unit(state, unit).params
      copies = programs.cast(own, self.device)
      params |= zip(unit.names, copies, strict=True)
    return state.replace(params=params)

  def forward(
      self, after: jax.Array, state: spec_lib.StageState, inputs: base.PyTree, *data: base.PyTree
  ) -> tuple[jax.Array, base.PyTree, list[spec_lib.Saved]]:
    """Returns `done`, the outputs, and the saved values of each unit.

    `data` is the batch, the step and the microbatch; see `KindPrograms`.
    """
    kept: list[spec_lib.Saved] = []
    for position in range(len(self._units)):
      after, outputs, saved = self._run("forward", position, after, state, inputs, *data)
      kept.append(saved.replace(inputs=inputs) if kept else saved)
      inputs = outputs
    return after, inputs, kept

  def redundant(
      self, after: jax.Array, state: spec_lib.StageState, inputs: base.PyTree, *data: base.PyTree
  ) -> tuple[jax.Array, base.PyTree, list[spec_lib.Saved]]:
    """Like `forward`, but its results are where `plan.residuals` says.

    Skips the unit with the loss, because no other unit waits for it: if the
    owner dies, `complete` runs it.
    """
    kept, held, nothing = [], None, spec_lib.Saved(None, None, None, None)
    for position, (unit, _) in enumerate(self._units):
      if unit.is_last:
        kept.append(nothing.replace(inputs=held))
        return after, None, kept
      given = (position, after, state, inputs, *data)
      if self._residuals == "host":
        after, inputs, outputs, saved = self._run("redundant", *given)
      else:
        after, outputs, saved = self._run("forward", *given)
        inputs = outputs
      kept.append(saved.replace(inputs=held))
      held = outputs
    return after, held, kept

  def complete(
      self,
      after: jax.Array,
      state: spec_lib.StageState,
      inputs: base.PyTree,
      kept: list[spec_lib.Saved],
      *data: base.PyTree,
  ) -> tuple[jax.Array, list[spec_lib.Saved]]:
    """Returns `done`, and `kept` with the residuals that `redundant` omits."""
    done = []
    for position, saved in enumerate(kept):
      if saved.residuals is None:
        given = inputs if saved.inputs is None else saved.inputs
        after, _, new = self._run("forward", position, after, state, given, *data)
        saved = new.replace(inputs=saved.inputs)
      done.append(saved)
    return after, done

  def backward(
      self,
      after: jax.Array,
      state: spec_lib.StageState,
      inputs: base.PyTree,
      kept: list[spec_lib.Saved],
      grad: base.PyTree,
      accumulator: spec_lib.Accumulator,
  ) -> tuple[jax.Array, base.PyTree, spec_lib.Accumulator]:
    """Returns `done`, the gradient of the inputs, and the new accumulator."""
    parts: list[base.PyTree] = []
    pairs = list(zip(self._units, kept, strict=True))
    for (unit, programs), saved in reversed(pairs):
      after, grad, part = programs["backward", self.device](
          *(after, spec_lib.to_unit(state, unit).params),
          inputs if unit is self._units[0][0] else saved.inputs,
          saved.replace(inputs=None),  # As it was traced.
          *(grad, spec_lib.to_unit(accumulator, unit)),
      )
      parts.insert(0, part)  # In model order again.
    return after, grad, self._join(parts)

  def evaluate(
      self, after: jax.Array, state: spec_lib.StageState, inputs: base.PyTree, batch: base.PyTree
  ) -> tuple[jax.Array, base.PyTree]:
    """Returns `done`, and the outputs without dropout; if last, the losses."""
    for position in range(len(self._units)):
      after, inputs = self._run("evaluate", position, after, state, inputs, batch)
    return after, inputs

  def update(
      self,
      state: spec_lib.StageState,
      total: spec_lib.Accumulator,
      scale: jax.Array,
      num_microbatches: jax.Array,
      *,
      donate: bool,
  ) -> spec_lib.StageState:
    """Returns the next state; with `donate` consumes parameters and slots."""
    name, parts = "update" if donate else "propose", []
    for unit, programs in self._units:
      old, sums = spec_lib.to_unit(state, unit), spec_lib.to_unit(total, unit)
      run = programs[name, self.device]
      params = spec_lib.drop_frozen(unit, old.params)
      new = run(params, old.slots, sums, scale, num_microbatches)
      parts.append(spec_lib.add_frozen(new, old))
    return self._join(parts)

  def norms(self, total: spec_lib.Accumulator) -> list[jax.Array]:
    """Returns the squared norms of the layers, one array for each unit."""
    return [
        programs["norms", self.device](spec_lib.to_unit(total, unit))
        for unit, programs in self._units
    ]

  def _run(
      self,
      name: str,
      position: int,
      after: jax.Array,
      state: spec_lib.StageState,
      inputs: base.PyTree,
      batch: base.PyTree,
      *numbers: jax.Array,
  ) -> tuple[base.PyTree, ...]:
    """Runs a forward pass; in training `numbers` are step and microbatch."""
    if not self._indices:  # Of the first layer of each unit, on the device.
      indices = [np.uint32(unit.first) for unit, _ in self._units]
      self._indices = jax.device_put(indices, places.whole(self.device))
    unit, programs = self._units[position]
    part = spec_lib.to_unit(state, unit)
    if numbers:
      numbers = (*numbers, self._indices[position])
    batch = {key: batch[key] for key in unit.batch_keys}
    return programs[name, self.device](after, part.params, part.stats, inputs, batch, *numbers)

  def _join(self, parts: Iterable[base.PyTree]) -> base.PyTree:
    return spec_lib.from_units(list(parts), self.spec.units)
