"""Counts the products of a program, whatever a compiler makes of it.

Model operations are counted as in MFU (Chowdhery et al., PaLM, 2022, appendix
B): products of matrices and convolutions of the forward pass, two operations
per multiply and add. A backward pass counts twice as much, one product for each
factor. Norms, dropout, softmax, the optimizer and recomputation count nothing;
attention counts in full, although causal attention needs only half of its
scores.
"""

from collections.abc import Callable, Iterable, Iterator
import functools
import math
from typing import Any, NamedTuple

import jax
from jax.extend import core

from bamboo_jax import base
from bamboo_jax.models.text import cudnn
from bamboo_jax.runtime.stage import spec as spec_lib

Jaxpr = core.Jaxpr | core.ClosedJaxpr

BACKWARD_FACTOR = 2  # Operations of a backward pass per one of its forward.


class Product(NamedTuple):
  """A product of matrices, or a convolution.

  Attributes:
    flops: Its operations.
    num_bytes: Size of both factors and of the result; without scores of
      attention where it is one kernel on GPUs, as these stay on the chip.
  """

  flops: int
  num_bytes: int


def count_products(function: Callable[..., Any], *args: base.PyTree) -> int:
  """Returns the operations of all products that `function` computes.

  It is traced, not run; see `find_products`. `args` are arrays or shapes.
  """
  jaxpr = jax.make_jaxpr(function)(*args)
  return sum(product.flops for product in find_products(jaxpr))


def find_products(
    jaxpr: Jaxpr, *, loop_length: int | None = None, is_fused: bool = False
) -> list[Product]:
  """Returns the products of a program, those of a loop as one each.

  The branch of a condition with most operations counts. If another one is
  cuDNN's attention, which GPUs take, scores are not in memory, nor if the program
  `is_fused`. A loop whose length depends on data has `loop_length`; if None, products in
  it raise `ValueError`.
  """
  found: list[Product] = []
  for eqn in jaxpr.eqns:
    name, inner = eqn.primitive.name, [*_inner(eqn.params)]
    in_kernel = is_fused or (name == "cond" and any(map(_is_fused, inner)))
    parts = [find_products(j, loop_length=loop_length, is_fused=in_kernel) for j in inner]
    every = [product for part in parts for product in part]
    if name in _FLOPS:
      arrays = [v.aval for v in (*eqn.invars, *eqn.outvars)]
      num_bytes = spec_lib.nbytes(arrays) - is_fused * _score_bytes(arrays)
      found.append(Product(_FLOPS[name](eqn), num_bytes))
    elif name == "cond":
      found += max(parts, key=lambda part: sum(p.flops for p in part))
    elif name in ("scan", "while"):
      count: Any = eqn.params.get("length", loop_length)
      if count is None and every:
        raise ValueError("A loop of unknown length contains products.")
      found += [Product(*(count * value for value in product)) for product in every]
    else:
      found += every
  return found


def largest_product(jaxpr: Jaxpr) -> int:
  """Returns the bytes of the largest product of a program; 0 without one."""
  sizes = [0]
  for eqn in jaxpr.eqns:
    if eqn.primitive.name in _FLOPS:
      sizes.append(spec_lib.nbytes([v.aval for v in eqn.outvars]))
    sizes += map(largest_product, _inner(eqn.params))
  return max(sizes)


def layer_flops(spec: spec_lib.StageSpec) -> dict[str, int]:
  """Returns the operations of each layer's forward pass, one microbatch."""
  seen, flops = {}, {}
  for one in spec.single_layers:
    (layer,) = one.layers
    kind = layer.kind, str(one.inputs)
    if kind not in seen:
      run = functools.partial(layer.apply, key=None, train=False)
      state = one.state[layer.name]
      arguments = (state.params, state.stats, one.inputs, one.pick(one.batch))
      seen[kind] = count_products(run, *arguments)
    flops[layer.name] = seen[kind]
  return flops


def step_flops(spec: spec_lib.StageSpec) -> int:
  """Returns the operations of a microbatch that MFU counts, both passes.

  The backward pass of a product with frozen weights has one product, not two.
  """
  factor = BACKWARD_FACTOR
  if any(layer.trained for layer in spec.layers):
    factor = 1
  return (1 + factor) * sum(layer_flops(spec).values())


def _score_bytes(arrays: Iterable[Any]) -> int:
  """Returns the bytes of arrays with an entry for each pair of tokens.

  These have at least 4 dimensions, of which the largest occurs twice.
  """
  is_score = lambda a: a.ndim > 3 and a.shape.count(max(a.shape)) > 1
  return spec_lib.nbytes([a for a in arrays if is_score(a)])


def _is_fused(jaxpr: Jaxpr) -> bool:
  """Returns whether a program calls cuDNN's attention."""
  return any(
      eqn.primitive.name in cudnn.PRIMITIVES or any(map(_is_fused, _inner(eqn.params)))
      for eqn in jaxpr.eqns
  )


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
  for value in params.values():
    for item in value if isinstance(value, tuple | list) else (value,):
      if isinstance(item, Jaxpr):
        yield item


def _dot_flops(eqn: Any) -> int:
  (contracted, _), _ = eqn.params["dimension_numbers"]
  lhs, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
  return 2 * math.prod(out) * math.prod(lhs[i] for i in contracted)


def _conv_flops(eqn: Any) -> int:
  kernel, out = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
  out_features = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
  return 2 * math.prod(out) * math.prod(kernel) // out_features


_FLOPS = {"dot_general": _dot_flops, "conv_general_dilated": _conv_flops}
