"""Functions of a unit to be traced; `programs` compiles them for a device.

They know no device, no names of layers and no position in the model: layers are
identified by position, and the index of the first is an argument.
"""

from collections.abc import Hashable
import functools
import threading

import jax
import jax.numpy as jnp
import optax

from bamboo_jax import base
from bamboo_jax.models import model as model_lib, remat
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.stage import casts, spec as spec_lib

Layers = tuple[base.PyTree, ...]


def copies_of(spec: spec_lib.StageSpec) -> dict[str, base.PyTree]:
  """Returns shapes of parameters, in the dtypes that passes read, by layer."""
  if not spec.is_mixed:
    return spec.state.params
  found: dict[str, base.PyTree] = {}
  by_kind: dict[Hashable, Layers] = {}
  for unit in spec.units:
    if unit.kind not in by_kind:
      by_kind[unit.kind] = UnitFunctions(unit).copies
    found |= zip(unit.names, by_kind[unit.kind], strict=True)
  return found


def make_token() -> jax.Array:
  """Returns a program's output `done`, ready when the program has ended."""
  return jnp.zeros((1,), jnp.int8)


class UnitFunctions:
  """The functions of a kind of unit; `KindPrograms` gives their signatures.

  Attributes:
    lock: Held while one of them is traced, because `backward` needs results of
      `forward`. Programs of several devices share the functions.
  """

  def __init__(self, unit: spec_lib.StageSpec) -> None:
    self.unit = unit
    self.lock = threading.RLock()
    self._join_vjp: compat.JoinVjp | None = None

  @property
  def copies(self) -> Layers:
    """Shapes of the parameters in the dtypes that passes read, see `casts`."""
    # This lock first: threads that trace hold it as they ask for the property,
    # whose own lock (of Python 3.11) another thread would hold otherwise.
    with self.lock:
      return self._copies

  @functools.cached_property
  def _copies(self) -> Layers:
    unit = self.unit
    state = spec_lib.to_unit(unit.state, unit)
    if not unit.is_mixed:
      return state.params
    batch = {k: unit.batch[k] for k in unit.batch_keys}
    number = jax.ShapeDtypeStruct((), jnp.uint32)
    data = (state.stats, unit.inputs, batch)
    return casts.find_copies(self.passes, state.params, unit.outputs, data, number)

  def passes(
      self, params: Layers, grad: base.PyTree, data: tuple[base.PyTree, ...], number: jax.Array
  ) -> base.PyTree:
    """Runs each pass once, to be traced for `casts.find_copies`.

    `data` is statistics, inputs and batch; `number` serves as step, microbatch
    and index.
    """
    after, (_, inputs, _) = make_token(), data
    _, outputs, saved = self.forward(after, params, *data, *[number] * 3)
    back = (after, params, inputs, saved, grad, self.zeros(after))
    return outputs, self.backward(*back), self.evaluate(after, params, *data)

  def cast(self, params: Layers) -> Layers:
    """Returns the parameters that passes read in another dtype; None for others."""
    copy = lambda a, like: None if a.dtype == like.dtype else a.astype(like.dtype)
    return jax.tree.map(copy, params, self.copies)

  def forward(
      self,
      after: jax.Array,
      params: Layers,
      stats: Layers,
      inputs: base.PyTree,
      batch: base.PyTree,
      *counters: jax.Array,
  ) -> tuple[jax.Array, base.PyTree, spec_lib.Saved]:
    """Runs a forward pass; must be traced before `backward`."""
    run = lambda params, inputs: self._apply(params, stats, inputs, batch, *counters)
    run = remat.checkpoint(run, remat.of_units(self.unit.remat))
    outputs, vjp, stats = jax.vjp(run, widen(params), inputs, has_aux=True)
    self._join_vjp, residuals = compat.split_vjp(vjp)
    loss = None
    if self.unit.is_last:
      outputs, loss = None, outputs
    return make_token(), outputs, spec_lib.Saved(None, residuals, stats, loss)

  def redundant(
      self, *args: base.PyTree
  ) -> tuple[jax.Array, base.PyTree, base.PyTree, spec_lib.Saved]:
    """Runs `forward`; also returns outputs and saved values in host memory."""
    done, outputs, saved = self.forward(*args)
    kept = jax.device_put((outputs, saved), jax.memory.Space.Host)
    return (done, outputs, *kept)

  def backward(
      self,
      after: jax.Array,
      params: Layers,
      inputs: base.PyTree,
      saved: spec_lib.Saved,
      grad: base.PyTree,
      accumulator: spec_lib.Accumulator,
  ) -> tuple[jax.Array, base.PyTree, spec_lib.Accumulator]:
    """Runs a backward pass and adds up its gradients."""
    assert self._join_vjp is not None, "forward is traced first"
    vjp = self._join_vjp((widen(params), inputs), saved.residuals)
    if self.unit.is_last:
      zeros = [0.0] * (1 + len(self.unit.metrics))
      grad = jnp.array([1.0, *zeros], jnp.float32)  # Only of the loss.
    grads, grad_inputs = vjp(grad)  # XLA skips gradients of frozen weights.
    grads = spec_lib.drop_frozen(self.unit, grads)
    add = lambda total, x: total + x.reshape(total.shape).astype(total.dtype)
    seen = spec_lib.Accumulator(grads, saved.stats, saved.loss)
    return make_token(), grad_inputs, jax.tree.map(add, accumulator, seen)

  def evaluate(
      self, after: jax.Array, params: Layers, stats: Layers, inputs: base.PyTree, batch: base.PyTree
  ) -> tuple[jax.Array, base.PyTree]:
    """Runs a forward pass without dropout.

    The last unit returns `layer.Loss.stack`.
    """
    outputs, _ = self._apply(widen(params), stats, inputs, batch)
    return make_token(), outputs

  def update(
      self,
      params: Layers,
      slots: Layers,
      total: spec_lib.Accumulator,
      scale: jax.Array,
      num_microbatches: jax.Array,
  ) -> spec_lib.StageState:
    """Applies the optimizer to gradients multiplied by `scale`.

    `params` and the parameters of the result are the trained ones.
    Gradients and statistics are sums over microbatches; those of scalars have
    shape [1].
    """
    shapes = spec_lib.to_unit(self.unit.state, self.unit).stats
    scaled = lambda g, like: g.reshape(like.shape) * scale
    mean = lambda s, like: (s / num_microbatches).reshape(like.shape)
    layers = []
    for old, slot, like, grads, stats in zip(
        params, slots, shapes, total.grads, total.stats, strict=True
    ):
      grads = jax.tree.map(scaled, grads, old)
      updates, slot = self.unit.optimizer.update(grads, slot, old)
      new = optax.apply_updates(old, updates)
      layers.append((new, slot, jax.tree.map(mean, stats, like)))
    return spec_lib.StageState(*zip(*layers, strict=True))

  def norms(self, total: spec_lib.Accumulator) -> jax.Array:
    """Returns the squared gradient norm of each layer, tied copies excluded."""
    norms = []
    for layer, grads in zip(self.unit.layers, total.grads, strict=True):
      tied = {tie.param for tie in layer.ties}
      leaves = jax.tree.leaves({k: g for k, g in grads.items() if k not in tied})
      norms.append(sum((jnp.sum(g * g) for g in leaves), jnp.float32(0)))
    return jnp.stack(norms)

  def zeros(self, after: jax.Array) -> spec_lib.Accumulator:
    """Returns the accumulator before the first microbatch."""
    zero = spec_lib.zero_accumulator(self.unit)
    return spec_lib.to_unit(zero, self.unit)

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


def widen(params: base.PyTree) -> base.PyTree:
  """Casts parameters to float32, the dtype that layers and gradients have.

  XLA removes casts there and back.
  """
  return jax.tree.map(lambda a: a.astype(jnp.float32), params)
