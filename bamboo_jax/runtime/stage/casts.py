"""Finds the weights that passes read only in a lower precision.

In mixed precision layers cast the weights that they multiply with. The state is
the same for all microbatches of a step, so these weights are cast once per
step, and passes read the copies. The traced passes tell which: a weight is
copied only if its sole use is a cast to one dtype. So no bit depends on it, and
layer norms, or an embedding that is summed in float32, have no copy.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

from bamboo_jax import base


def find_copies(run: Callable[..., Any], params: base.PyTree, *others: base.PyTree) -> base.PyTree:
  """Returns the shapes of `params` with the dtypes in which `run` reads them.

  All arguments of `run` are shapes too.
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
