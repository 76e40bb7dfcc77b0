"""Counts the operations that a model needs, whatever a compiler makes of it.

The measure is that of MFU (Chowdhery et al., PaLM, 2022, appendix B): products
of matrices and convolutions of the forward pass, two operations per multiply
and add. A backward pass counts twice as much, one product for each factor.
Norms, dropout, softmax, the optimizer and recomputation count nothing;
attention counts in full, although causal attention needs only half of its
scores.
"""

from collections.abc import Callable, Iterator
import dataclasses
import math
from typing import Any

import jax
from jax.extend import core

from bamboo_jax import base
from bamboo_jax.runtime.stage import spec as spec_lib

BACKWARD_FACTOR = 2  # Operations of a backward pass per one of its forward.


def count_products(function: Callable[..., Any], *args: base.PyTree) -> int:
  """Returns the operations of all products that `function` computes.

  It is traced, not run; the largest branch of a condition counts, and no loop
  may depend on data. `args` are arrays or shapes.
  """
  return _count(jax.make_jaxpr(function)(*args))


def layer_flops(spec: spec_lib.StageSpec) -> dict[str, int]:
  """Returns the operations of each layer's forward pass, one microbatch."""
  seen, flops = {}, {}
  for index in range(spec.first, spec.last):
    one = dataclasses.replace(spec, first=index, last=index + 1, unit="layer")
    (layer,) = one.layers
    kind = layer.kind, str(one.inputs)
    if kind not in seen:
      seen[kind] = _layer_flops(one)
    flops[layer.name] = seen[kind]
  return flops


def unread_attention(spec: spec_lib.StageSpec) -> int:
  """Returns the operations on scores that causal attention does not need.

  Of a forward pass of a GPT-2: half of its two products with scores.
  """
  num_examples, length = spec.batch["inputs"].shape
  shape = spec.model.fingerprint
  per_block = 2 * num_examples * length**2 * shape["width"]
  return shape["num_blocks"] * per_block


def _layer_flops(spec: spec_lib.StageSpec) -> int:
  (layer,) = spec.layers
  state = spec.state
  return count_products(
      lambda params, stats, inputs, batch: layer.apply(
          params, stats, inputs, batch, key=None, train=False
      ),
      state.params[layer.name],
      state.stats[layer.name],
      spec.inputs,
      {key: spec.batch[key] for key in layer.batch_keys},
  )


def _count(jaxpr: Any) -> int:
  total = 0
  for eqn in jaxpr.eqns:
    inner = [_count(j) for j in _inner(eqn.params)]
    match eqn.primitive.name:
      case "dot_general":
        total += _dot_flops(eqn)
      case "conv_general_dilated":
        total += _conv_flops(eqn)
      case "cond":
        total += max(inner)
      case "scan":
        total += eqn.params["length"] * sum(inner)
      case "while" if any(inner):
        raise ValueError("A loop of unknown length contains products.")
      case _:
        total += sum(inner)
  return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
  for value in params.values():
    for item in value if isinstance(value, tuple | list) else (value,):
      if isinstance(item, core.Jaxpr | core.ClosedJaxpr):
        yield item


def _dot_flops(eqn: Any) -> int:
  (contracted, _), _ = eqn.params["dimension_numbers"]
  lhs, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
  return 2 * math.prod(out) * math.prod(lhs[i] for i in contracted)


def _conv_flops(eqn: Any) -> int:
  kernel, out = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
  out_features = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
  return 2 * math.prod(out) * math.prod(kernel) // out_features
