"""Functions of a stage to be traced; `programs` compiles them for a device.

Nothing here knows a device; `stage` compiles these functions for one.
"""

import threading

import jax
import jax.numpy as jnp
import optax

from bamboo_jax import base
from bamboo_jax.models import model as model_lib
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.stage import spec as spec_lib


def make_token() -> jax.Array:
  """Returns the result `done` of a program: ready when it has ended."""
  return jnp.zeros((1,), jnp.int8)


def update_layer(
    layer: spec_lib.LayerState,
    grads: base.PyTree,
    stats: base.PyTree,
    *,
    optimizer: optax.GradientTransformation,
    scale: jax.Array,
    num_microbatches: jax.Array | int,
) -> spec_lib.LayerState:
  """Returns the next state of a layer; of its statistics only shapes count.

  Args:
    grads: Sum of its gradients, still to be multiplied by `scale`.
    stats: Sum of its statistics over `num_microbatches`.
  """
  grads = jax.tree.map(lambda g: g * scale, grads)
  updates, slots = optimizer.update(grads, layer.slots, layer.params)
  mean = lambda s, like: (s / num_microbatches).reshape(like.shape)
  return spec_lib.LayerState(
      params=optax.apply_updates(layer.params, updates),
      slots=slots,
      stats=jax.tree.map(mean, stats, layer.stats),
  )


class StageFunctions:
  """The functions of one stage; `StagePrograms` says what they take.

  Attributes:
    lock: Held while one of them is traced, as `backward` needs results of
      `forward`. Programs of several devices share the functions.
  """

  def __init__(self, spec: spec_lib.StageSpec) -> None:
    self.spec = spec
    self.lock = threading.RLock()
    self._skeleton: compat.VjpSkeleton | None = None

  def forward(
      self,
      after: jax.Array,
      params: base.PyTree,
      stats: base.PyTree,
      inputs: base.PyTree,
      batch: base.PyTree,
      step: jax.Array,
      microbatch: jax.Array,
  ) -> tuple[jax.Array, base.PyTree, spec_lib.Saved]:
    """Runs a forward pass; must be traced before `backward`."""
    spec = self.spec
    run = lambda params, inputs: _apply(
        spec, params, stats, inputs, batch, step, microbatch, train=True
    )
    if spec.remat != "full":
      run = jax.checkpoint(run, policy=spec_lib.REMAT_POLICIES[spec.remat])
    outputs, vjp, stats = jax.vjp(run, params, inputs, has_aux=True)
    self._skeleton, residuals = compat.split_vjp(vjp)
    if spec.is_last:
      return make_token(), None, spec_lib.Saved(residuals, stats, outputs)
    return make_token(), outputs, spec_lib.Saved(residuals, stats, None)

  def backward(
      self,
      after: jax.Array,
      params: base.PyTree,
      inputs: base.PyTree,
      saved: spec_lib.Saved,
      grad: base.PyTree,
      accumulator: spec_lib.Accumulator,
  ) -> tuple[jax.Array, base.PyTree, spec_lib.Accumulator]:
    """Runs a backward pass and adds up its gradients."""
    vjp = self._skeleton.join((params, inputs), saved.residuals)
    if self.spec.is_last:
      grad = jnp.array([1.0, 0.0], jnp.float32)  # Of the loss, not its weight.
    grads, grad_inputs = vjp(grad)
    add = lambda total, x: total + x.reshape(total.shape).astype(total.dtype)
    seen = spec_lib.Accumulator(grads, saved.stats, saved.loss)
    return make_token(), grad_inputs, jax.tree.map(add, accumulator, seen)

  def evaluate(
      self,
      after: jax.Array,
      params: base.PyTree,
      stats: base.PyTree,
      inputs: base.PyTree,
      batch: base.PyTree,
  ) -> tuple[jax.Array, base.PyTree]:
    """Runs a forward pass without dropout; the last stage returns [2]."""
    zero = jnp.uint32(0)
    outputs, _ = _apply(
        self.spec, params, stats, inputs, batch, zero, zero, train=False
    )
    return make_token(), outputs

  def update(
      self,
      params: base.PyTree,
      slots: base.PyTree,
      total: spec_lib.Accumulator,
      scale: jax.Array,
      num_microbatches: jax.Array,
  ) -> spec_lib.StageState:
    """Applies the optimizer to gradients multiplied by `scale`."""
    spec = self.spec
    return spec_lib.merge_layers(
        {
            name: update_layer(
                spec_lib.LayerState(old, slots[name], spec.state.stats[name]),
                total.grads[name],
                total.stats[name],
                optimizer=spec.optimizer,
                scale=scale,
                num_microbatches=num_microbatches,
            )
            for name, old in params.items()
        }
    )

  def norms(self, total: spec_lib.Accumulator) -> jax.Array:
    """Returns the squared gradient norm of each layer; copies do not count."""
    norms = []
    for layer in self.spec.layers:
      tied = {tie.param for tie in layer.ties}
      grads = total.grads[layer.name]
      leaves = jax.tree.leaves(
          {k: g for k, g in grads.items() if k not in tied}
      )
      norms.append(sum((jnp.sum(g * g) for g in leaves), jnp.float32(0)))
    return jnp.stack(norms)

  def zeros(self) -> spec_lib.Accumulator:
    """Returns the accumulator before the first microbatch."""
    return spec_lib.zero_accumulator(self.spec)

  def token(self) -> jax.Array:
    """Returns what the first program of a row waits for."""
    return make_token()


def _apply(
    spec: spec_lib.StageSpec,
    params: base.PyTree,
    stats: base.PyTree,
    inputs: base.PyTree,
    batch: base.PyTree,
    step: jax.Array,
    microbatch: jax.Array,
    train: bool,
) -> tuple[base.PyTree, base.PyTree]:
  key = model_lib.microbatch_key(spec.seed, step, microbatch, impl=spec.prng)
  outputs, stats = model_lib.apply_range(
      spec.model,
      spec.first,
      spec.last,
      params,
      stats,
      inputs,
      batch,
      key=key,
      train=train,
  )
  if spec.is_last:
    outputs = jnp.stack([outputs.total, outputs.weight])
  return outputs, stats
