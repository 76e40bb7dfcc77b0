"""A branch that changes large arrays in place.

XLA copies all operands of a conditional, taken or not: in every tick that would
be all ring buffers and all sums of gradients. Operands of a loop stay in place.
So a branch that changes such arrays is written as a loop with zero iterations
or one.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")
U = TypeVar("U")


def run_if(
    predicate: bool | jax.Array, run: Callable[[T, U], T], carry: T, inputs: U
) -> tuple[T, U]:
  """Returns `run(carry, inputs)` if `predicate` holds, else `carry`.

  Args:
    predicate: A scalar, which may differ between devices.
    run: Contains no collective; returns a tree like `carry`.
    carry: Arrays to be changed, in place.
    inputs: Small arrays on which everything else that `run` computes depends.
      XLA hoists loop-invariant code out of a loop, where it would always run;
      so these are made to look variant.

  Returns:
    The result, and `inputs`. Code that reads these instead of the argument runs
    after this branch, so nothing is copied because it might run before.
  """

  def body(i: jax.Array, state: tuple[T, U]) -> tuple[T, U]:
    carry, inputs = state
    seem = lambda a: jnp.where(i == 0, a, jnp.zeros_like(a))
    inputs = jax.tree.map(seem, inputs)
    return run(carry, inputs), inputs

  return jax.lax.fori_loop(0, jnp.where(predicate, 1, 0), body, (carry, inputs))
