"""The parts of JAX that are not public API, in one place.

Checked with jax 0.10 and meant for `jax>=0.10,<0.12`. If JAX changes, this
module says so when it is imported, instead of failing somewhere inside a step.
"""

from collections.abc import Callable
import dataclasses
import inspect
from typing import Any

import jax

_VJP_FIELDS = {"fun", "in_tree", "out_tree", "args_res", "opaque_residuals"}


@dataclasses.dataclass(frozen=True)
class VjpSkeleton:
  """What is left of a VJP function without its residuals.

  Holds no arrays, so it may be carried from the trace of a forward program to
  the trace of the backward program.
  """

  make: Callable[[list[Any], list[Any]], Callable[..., Any]]

  def join(self, args: Any, residuals: list[Any]) -> Callable[..., Any]:
    """Returns the VJP function again.

    Args:
      args: The primal arguments, as passed to `jax.vjp`: a tuple of pytrees.
      residuals: What `split_vjp` returned besides.
    """
    return self.make(jax.tree.leaves(args), residuals)


def split_vjp(vjp: Any) -> tuple[VjpSkeleton, list[Any]]:
  """Splits what `jax.vjp` returned into structure and residuals.

  The residuals leave out all that is an argument of the function itself, so
  parameters and inputs need not be kept once more for each microbatch.

  Raises:
    RuntimeError: This version of JAX keeps residuals in another way.
  """
  fields = set(dir(vjp))
  if not fields >= _VJP_FIELDS:
    raise RuntimeError(
        f"jax {jax.__version__} is not supported: the VJP object lacks "
        f"{sorted(_VJP_FIELDS - fields)}; use jax>=0.10,<0.12."
    )
  cls, fun = type(vjp), vjp.fun
  in_tree, out_tree = vjp.in_tree, vjp.out_tree
  assert list(inspect.signature(cls).parameters) == [
      "fun",
      "in_tree",
      "out_tree",
      "args_res",
      "opaque_residuals",
  ]

  def make(args: list[Any], residuals: list[Any]) -> Callable[..., Any]:
    return cls(fun, in_tree, out_tree, args, residuals)

  return VjpSkeleton(make), list(vjp.opaque_residuals)
