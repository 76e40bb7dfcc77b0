"""The plain model, without stages: what a pipelined step is compared with."""

import functools

import jax
import numpy as np

from bamboo_jax.models import model as model_lib


def run_layers(model, params, batch, *, stats=None, last=None, key=None, train=False):
  """Returns the outputs of the layers before `last`: the loss, if it is all of them."""
  last, stats = last or len(model.layers), stats or {name: {} for name in model.layer_names}
  return model_lib.apply_range(model, 0, last, params, stats, None, batch, key=key, train=train)[0]


class PlainModel:
  """`jax.grad` of the whole model, one microbatch at a time, summed."""

  def __init__(self, spec):
    self._spec = spec

  @functools.cached_property
  def _value_and_grad(self):
    spec = self._spec

    def loss_sum(params, stats, batch, step, microbatch):
      key = model_lib.microbatch_key(spec.seed, step, microbatch, impl=spec.prng)
      loss, stats = model_lib.apply_range(
          spec.model, 0, len(spec.model.layers), params, stats, None, batch, key=key, train=True
      )
      return loss.total, (loss.weight, stats)

    return jax.jit(jax.value_and_grad(loss_sum, has_aux=True))

  def _run(self, layers, batch, step, microbatch):
    """Returns ((loss, (weight, statistics)), gradients) of one microbatch."""
    params = {name: layer.params for name, layer in layers.items()}
    stats = {name: layer.stats for name, layer in layers.items()}
    return self._value_and_grad(params, stats, batch, np.uint32(step), np.uint32(microbatch))

  def stats(self, layers, batch, *, step, microbatch):
    """Returns the statistics after one microbatch, by layer."""
    (_, (_, stats)), _ = self._run(layers, batch, step, microbatch)
    return jax.tree.map(np.asarray, stats)

  def grads(self, layers, microbatch_fn, *, step, microbatches):
    """Returns gradients of the sum of losses, the sum, and its weight.

    Copies of tied parameters get the sum of the gradients of all copies.
    """
    total, loss, weight = None, 0.0, 0.0
    for m in microbatches:
      (value, (w, _)), grads = self._run(layers, microbatch_fn(step, m), step, m)
      grads = jax.tree.map(lambda g: np.asarray(g, np.float64), grads)
      total = grads if total is None else jax.tree.map(np.add, total, grads)
      loss, weight = loss + float(value), weight + float(w)
    for layer in self._spec.model.layers:
      for tie in layer.ties:
        owner = total[tie.layer][tie.layer_param]
        shared = owner + total[layer.name][tie.param]
        total[tie.layer][tie.layer_param] = shared
        total[layer.name][tie.param] = shared
    return total, loss, weight


def relative_error(got, want):
  """Returns max |got - want| / max |want| over whole trees."""
  pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True))
  largest = max(np.max(np.abs(w)) for _, w in pairs)
  return max(np.max(np.abs(np.asarray(g) - w)) for g, w in pairs) / largest
