"""The programs of a kind of unit: functions under `jax.jit`.

They are local: no program contains a collective between nodes, so the death of
a peer cannot make one fail. They know no names of layers and no position in the
model: layers are identified by position, and the index of the first is an
argument. So a program is traced once for all units of a kind, and compiled for
each device, or for the mesh of a node.

The values from a forward to its backward pass are explicit (`spec.Saved`),
without parameters and stage inputs, which the node keeps once.

XLA:CPU may run two programs of one device concurrently. Every program of a row
therefore takes `after`, a token of its predecessor in the row, and returns a
token, `done`. So a device runs its row in order, as one GPU stream would, and
the token tells when an instruction has finished.
"""

from collections.abc import Callable, Hashable, Iterable
import functools
import threading
from typing import Any, TypeVar

import jax
from jax.extend import core
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.models import model as model_lib, remat
from bamboo_jax.runtime import compat, places
from bamboo_jax.runtime.stage import spec as spec_lib

Layers = tuple[base.PyTree, ...]
_T = TypeVar("_T")
_MOST_PROGRAMS = 64  # With 250 mappings of memory each.


class UnitPrograms:
  """The programs of a kind of unit.

  Calls take positional arguments, return at once, and the arrays become ready
  later. A call compiles if `compile` has not done so.

    forward(after, params, stats, inputs, batch, step, microbatch, index)
        -> (done, outputs, saved)
    redundant: the same as forward
        -> (done, outputs, outputs and saved in host memory)
    backward(after, params, inputs, saved, grad, accumulator)
        -> (done, grad_inputs, accumulator); donates the accumulator
    evaluate(after, params, stats, inputs, batch) -> (done, outputs or loss)
    update(params, slots, total, scale, num_microbatches)
        -> state; donates params and slots; all without frozen parameters
    propose: the same as update, but donates nothing
    norms(total) -> float32 [layers], squared norms of the gradients
    zeros(after) -> accumulator

  `step`, `microbatch` and `index` (of the first layer) are uint32 scalars,
  `scale` and `num_microbatches` are float32. `grad` is None for the last unit,
  `inputs` and `grad_inputs` are None for the first. Passes take `params` from
  `cast`; gradients and statistics in `total` are sums over microbatches, and
  those of scalars have shape [1].

  Args:
    mesh: On which the programs run; None for programs of one device.
  """

  def __init__(self, unit: spec_lib.StageSpec, mesh: jax.sharding.Mesh | None = None) -> None:
    self.unit, self._mesh = unit, mesh
    # Held while one is traced, because `backward` needs results of `forward`.
    self._lock = threading.RLock()
    # By the mesh in which passes are traced: what `jax.vjp` returns holds for no other one.
    self._join_vjps: dict[Any, compat.JoinVjp] = {}
    self._compiled: dict[tuple[str, places.Place], jax.stages.Compiled] = {}
    # Shapes of the parameters in the dtypes that passes read, see `find_copies`.
    self.copies = self._find_copies()
    whole, data, state = places.of_any, places.of_data, self._of_state
    self.forward = self._jit("forward", (whole, data, data))
    self.redundant = self._jit("redundant", ()) if mesh is None else self._copy_forward
    self.backward = self._jit("backward", (whole, data, state), donated=(5,))
    self.evaluate = self._jit("evaluate", (whole, data))
    self.update = self._jit("update", state, donated=(0, 1))
    self.propose = self._jit("propose", state)
    self.norms, self.zeros = self._jit("norms", whole), self._jit("zeros", state)
    self._copy = self._jit("cast", state)

  def _jit(self, name: str, results: Any, donated: tuple[int, ...] = ()) -> Any:
    """Returns a function under `jax.jit`.

    `results` find where results lie on a mesh, as the next program expects them.
    """
    function, options = getattr(self, f"_{name}"), dict[str, Any]()
    if (mesh := self._mesh) is not None:
      found = jax.eval_shape(function, *self._find_arguments(name, None))
      if not callable(results):
        where = tuple(find(mesh, part) for find, part in zip(results, found, strict=True))
      else:
        where = results(mesh, found)
      # With constraints within the function instead XLA makes other bits.
      options["out_shardings"] = where
    # `keep_unused`: `after` only orders programs.
    return jax.jit(function, donate_argnums=donated, keep_unused=True, **options)

  def cast(self, params: Layers) -> Layers:
    """Returns parameters as passes read them; may be the same arrays."""
    if not self.copy_bytes:
      return params
    copies = self._copy(params)
    return jax.tree.map(lambda own, copy: own if copy is None else copy, params, copies)

  @functools.cached_property
  def copy_bytes(self) -> int:
    """Size of the arrays that `cast` makes; 0 if passes read the parameters."""
    pairs = zip(*map(jax.tree.leaves, (self.copies, self.unit.shapes.params)), strict=True)
    return spec_lib.nbytes([c for c, p in pairs if c.dtype != p.dtype])

  @property
  def saved(self) -> spec_lib.Saved:
    """Shapes of the values that a forward pass keeps."""
    out = self.trace("forward").out_info
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), out[2])

  def compile(self, name: str, place: places.Place) -> jax.stages.Compiled | None:
    """Compiles a program, which calls then find; None if this unit does not have it."""
    if self._mesh is not None and name == "redundant":
      name = "forward"
    is_left_out = name == "redundant" and self.unit.is_last  # See `Node.run`.
    if is_left_out or (name == "cast" and not self.copy_bytes):
      return None
    if (name, place) not in self._compiled:
      self._compiled[name, place] = self.trace(name, place).lower().compile()
    return self._compiled[name, place]

  def trace(self, name: str, place: places.Place | None = None) -> jax.stages.Traced:
    """Returns a traced program; with a `place`, for arguments that lie there.

    Needs no device without one. Compiling and calls find the trace.
    """
    program = self._copy if name == "cast" else getattr(self, name)
    with self._lock:
      return program.trace(*self._find_arguments(name, place))

  def _find_arguments(self, name: str, place: places.Place | None) -> tuple[base.PyTree, ...]:
    """Returns the shapes of a program's arguments, and where they lie."""

    def put(find: Callable[[places.Place, Any], Any], tree: base.PyTree) -> base.PyTree:
      return tree if place is None else places.put_shapes(tree, find(place, tree))

    whole = lambda dtype, *shape: put(places.of_any, jax.ShapeDtypeStruct(shape, dtype))
    data, state = (functools.partial(put, find) for find in (places.of_data, self._of_state))
    unit, number, scale = self.unit, whole(np.uint32), whole(np.float32)
    own, total = state(unit.shapes), state(unit.accumulator)
    token, copies = whole(np.int8, 1), state(self.copies)
    passes = (token, copies, own.stats, data(unit.inputs), data(unit.pick(unit.batch)))
    match name:
      case "cast":
        return (own.params,)
      case "forward" | "redundant":
        return (*passes, number, number, number)
      case "backward":
        return (token, copies, data(unit.inputs), data(self.saved), data(unit.outputs), total)
      case "evaluate":
        return passes
      case "update" | "propose":
        return (spec_lib.drop_frozen(unit, own.params), own.slots, total, scale, scale)
      case "norms":
        return (total,)
    return (token,)

  def _find_copies(self) -> Layers:
    unit, number = self.unit, jax.ShapeDtypeStruct((), jnp.uint32)
    if not unit.is_mixed:
      return unit.shapes.params
    data = (unit.shapes.stats, unit.inputs, unit.pick(unit.batch))
    return find_copies(self._passes, unit.shapes.params, unit.outputs, data, number)

  def _passes(
      self, params: Layers, grad: base.PyTree, data: tuple[base.PyTree, ...], number: jax.Array
  ) -> base.PyTree:
    """Runs each pass once, to be traced for `find_copies`.

    `data` is statistics, inputs and batch; `number` serves as step, microbatch
    and index.
    """
    after, (_, inputs, _) = make_token(), data
    _, outputs, saved = self._forward(after, params, *data, *[number] * 3)
    back = (after, params, inputs, saved, grad, self._zeros(after))
    return outputs, self._backward(*back), self._evaluate(after, params, *data)

  def _cast(self, params: Layers) -> Layers:
    """Returns the parameters that passes read in another dtype; None for others."""
    copy = lambda a, like: None if a.dtype == like.dtype else a.astype(like.dtype)
    return jax.tree.map(copy, params, self.copies)

  def _forward(
      self,
      after: jax.Array,
      params: Layers,
      stats: Layers,
      inputs: base.PyTree,
      batch: base.PyTree,
      *counters: jax.Array,
  ) -> tuple[jax.Array, base.PyTree, spec_lib.Saved]:
    run = lambda params, inputs: self._apply(params, stats, inputs, batch, *counters)
    run = remat.checkpoint(run, remat.of_units(self.unit.remat))
    outputs, vjp, stats = jax.vjp(run, widen(params), inputs, has_aux=True)
    self._join_vjps[jax.sharding.get_abstract_mesh()], residuals = compat.split_vjp(vjp)
    loss = None
    if self.unit.is_last:
      outputs, loss = None, outputs
    return make_token(), outputs, spec_lib.Saved(residuals, stats, loss)

  def _redundant(
      self, *args: base.PyTree
  ) -> tuple[jax.Array, base.PyTree, base.PyTree, spec_lib.Saved]:
    done, outputs, saved = self._forward(*args)
    kept = jax.device_put((outputs, saved), jax.memory.Space.Host)
    return (done, outputs, *kept)

  def _copy_forward(self, *args: base.PyTree) -> tuple[base.PyTree, ...]:
    done, outputs, saved = self.forward(*args)
    return (done, outputs, *places.move((outputs, saved), "pinned_host"))

  def _backward(
      self,
      after: jax.Array,
      params: Layers,
      inputs: base.PyTree,
      saved: spec_lib.Saved,
      grad: base.PyTree,
      accumulator: spec_lib.Accumulator,
  ) -> tuple[jax.Array, base.PyTree, spec_lib.Accumulator]:
    join_vjp = self._join_vjps[jax.sharding.get_abstract_mesh()]  # Forward is traced first.
    vjp = join_vjp((widen(params), inputs), saved.residuals)
    if self.unit.is_last:
      zeros = [0.0] * (1 + len(self.unit.metrics))
      grad = jnp.array([1.0, *zeros], jnp.float32)  # Only of the loss.
    grads, grad_inputs = vjp(grad)  # XLA skips gradients of frozen weights.
    grads = spec_lib.drop_frozen(self.unit, grads)
    add = lambda total, x: total + x.reshape(total.shape).astype(total.dtype)
    seen = spec_lib.Accumulator(grads, saved.stats, saved.loss)
    return make_token(), grad_inputs, jax.tree.map(add, accumulator, seen)

  def _evaluate(
      self, after: jax.Array, params: Layers, stats: Layers, inputs: base.PyTree, batch: base.PyTree
  ) -> tuple[jax.Array, base.PyTree]:
    """Runs a forward pass without dropout; the last unit returns `layer.Loss.stack`."""
    outputs, _ = self._apply(widen(params), stats, inputs, batch)
    return make_token(), outputs

  def _update(
      self,
      params: Layers,
      slots: Layers,
      total: spec_lib.Accumulator,
      scale: jax.Array,
      num_microbatches: jax.Array,
  ) -> spec_lib.LayerState:
    scaled = lambda g, like: g.reshape(like.shape) * scale
    mean = lambda s, like: (s / num_microbatches).reshape(like.shape)
    layers = []
    for old, slot, grads in zip(params, slots, total.grads, strict=True):
      grads = jax.tree.map(scaled, grads, old)
      updates, slot = self.unit.optimizer.update(grads, slot, old)
      layers.append((optax.apply_updates(old, updates), slot))
    new, new_slots = zip(*layers, strict=True)
    return spec_lib.LayerState(
        new, new_slots, jax.tree.map(mean, total.stats, self.unit.shapes.stats)
    )

  _propose = _update

  def _norms(self, total: spec_lib.Accumulator) -> jax.Array:
    """Returns the squared gradient norm of each layer, tied copies excluded."""
    norms = []
    for layer, grads in zip(self.unit.layers, total.grads, strict=True):
      tied = {tie.param for tie in layer.ties}
      leaves = jax.tree.leaves({k: g for k, g in grads.items() if k not in tied})
      norms.append(sum((jnp.sum(g * g) for g in leaves), jnp.float32(0)))
    return jnp.stack(norms)

  def _zeros(self, after: jax.Array) -> spec_lib.Accumulator:
    return spec_lib.zero_accumulator(self.unit)

  def _apply(
      self,
      params: Layers,
      stats: Layers,
      inputs: base.PyTree,
      batch: base.PyTree,
      *counters: jax.Array,
  ) -> tuple[base.PyTree, Layers]:
    """Runs the layers; in training with step, microbatch and index."""
    unit, key, index = self.unit, None, None
    if counters:
      *numbers, index = counters
      key = model_lib.microbatch_key(unit.seed, *numbers, impl=unit.prng)
    outputs, stats = model_lib.apply_range(
        *(unit.model, unit.first, unit.last),
        dict(zip(unit.names, params, strict=True)),
        dict(zip(unit.names, stats, strict=True)),
        *(inputs, batch),
        key=key,
        train=bool(counters),
        index=index,
    )
    if unit.is_last:
      known = unit.model.metrics(unit.batch, train=bool(counters))
      if (found := tuple(sorted(outputs.metrics))) != known:
        raise ValueError(f"The loss must always return the same metrics: {known}, then {found}.")
      outputs = outputs.stack()
    return outputs, tuple(stats[name] for name in unit.names)

  def _of_state(self, place: places.Place, tree: base.PyTree) -> base.PyTree:
    return places.of_state(place, tree, self.unit.model.name)


class ProgramCache:
  """The programs of a model, kept while nodes and plans change; thread-safe.

  They depend only on kinds of units, layouts and places, so a new engine, or another
  partition, finds them again. XLA:CPU takes about three mappings of memory for each
  kernel, and Linux kills a process at 65,530. So a run whose layout changes often must
  drop programs of old layouts: of more than `limit` those that were used longest ago;
  loading one again takes milliseconds.
  """

  def __init__(self, limit: int = _MOST_PROGRAMS) -> None:
    self._limit, self._lock = limit, threading.RLock()
    self._programs: dict[Hashable, Any] = {}  # The least recently used first.

  def get(self, unit: spec_lib.StageSpec, place: places.Place | None = None) -> UnitPrograms:
    """Returns the programs of a unit's kind; those of all devices are the same."""
    mesh = place if isinstance(place, jax.sharding.Mesh) else None
    return self.find((unit.kind, mesh), lambda: UnitPrograms(unit, mesh))

  def find(self, key: Hashable, make: Callable[[], _T]) -> _T:
    """Returns the programs of a key, made if there are none."""
    with self._lock:
      value: _T = self._programs.pop(key) if key in self._programs else make()
      self._programs[key] = value
      if len(self._programs) > self._limit:
        del self._programs[next(iter(self._programs))]
      return value

  def clear(self) -> None:
    self._programs.clear()


def find_kinds(specs: Iterable[spec_lib.StageSpec]) -> list[spec_lib.StageSpec]:
  """Returns one unit of each kind, in model order."""
  kinds: dict[Hashable, spec_lib.StageSpec] = {}
  for spec in specs:
    for unit in spec.units:
      kinds.setdefault(unit.kind, unit)
  return [*kinds.values()]


def find_copies(run: Callable[..., Any], params: base.PyTree, *others: base.PyTree) -> base.PyTree:
  """Returns the shapes of `params` with the dtypes in which `run` reads them.

  In mixed precision layers cast the weights that they multiply with. These are
  the same for all microbatches of a step, so they are cast once per step, and
  passes read the copies. A weight is copied only if its sole use is a cast to one
  dtype. So no bit depends on it, and layer norms, or an embedding that is summed
  in float32, have no copy. All arguments of `run` are shapes too.
  """
  jaxpr = jax.make_jaxpr(run)(params, *others).jaxpr
  leaves, structure = jax.tree.flatten(params)
  copies = []
  for leaf, variable in zip(leaves, jaxpr.invars, strict=False):
    dtypes = _find_dtypes(jaxpr, variable)
    dtype = dtypes.pop() if len(dtypes) == 1 else leaf.dtype
    is_narrower = dtype.itemsize < leaf.dtype.itemsize
    copies.append(leaf.update(dtype=dtype) if is_narrower else leaf)
  return jax.tree.unflatten(structure, copies)


def _find_dtypes(jaxpr: core.Jaxpr, variable: Any) -> set[Any]:
  """Returns the dtypes in which a variable is used, its own if not cast."""
  own = variable.aval.dtype
  is_result = any(v is variable for v in jaxpr.outvars)
  found: set[Any] = {own} if is_result else set()
  for eqn in jaxpr.eqns:
    inner = [getattr(value, "jaxpr", value) for value in eqn.params.values()]
    inner = [value for value in inner if isinstance(value, core.Jaxpr)]
    # Else positions do not match, as in `cond`: counts as not cast.
    is_call = inner and all(len(j.invars) == len(eqn.invars) for j in inner)
    for i, argument in enumerate(eqn.invars):
      if argument is not variable:
        continue
      if eqn.primitive.name == "convert_element_type":
        found.add(eqn.params["new_dtype"])
      elif is_call:
        found.update(*(_find_dtypes(j, j.invars[i]) for j in inner))
      else:
        found.add(own)
  return found


def make_token() -> jax.Array:
  """Returns a program's output `done`, ready when the program has ended."""
  return jnp.zeros((1,), jnp.int8)


def widen(params: base.PyTree) -> base.PyTree:
  """Casts parameters to float32, the dtype that layers and gradients have.

  XLA removes casts there and back.
  """
  return jax.tree.map(lambda a: a.astype(jnp.float32), params)
