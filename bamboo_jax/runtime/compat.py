"""The parts of JAX that are not public API, in one place.

Run with jax 0.10.2, and written to fit the source of 0.11.2 as well. If JAX
changes, this module says so, instead of failing somewhere inside a step.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax._src import distributed
from jax._src.lib import _jax


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
  # One level of the pytree: the arguments first, then the other residuals; all
  # else is structure.
  parts, outer = jax.tree.flatten(vjp, is_leaf=lambda x: x is not vjp)
  if not parts or parts[0] is not getattr(vjp, "args_res", None):
    raise RuntimeError(
        f"jax {jax.__version__} is not supported: the function that jax.vjp "
        "returns does not begin with args_res; use jax>=0.10,<0.12."
    )
  residuals, inner = jax.tree.flatten(parts[1:])

  def make(args: list[Any], residuals: list[Any]) -> Callable[..., Any]:
    return outer.unflatten([args, *inner.unflatten(residuals)])

  return VjpSkeleton(make), residuals


def make_coordination_service(
    address: str, num_processes: int, *, heartbeat_secs: int
) -> Any:
  """Returns JAX's coordination service, which listens on `address`.

  Args:
    address: Host and port.
    num_processes: How many there may be.
    heartbeat_secs: After which silence it gives a process up.
  """
  return _jax.get_distributed_runtime_service(
      address,
      num_processes,
      heartbeat_timeout=heartbeat_secs,
      shutdown_timeout=2,
      recoverable=True,
  )


def make_coordination_client(
    address: str, process: int, *, heartbeat_secs: int
) -> Any:
  """Returns a client of the service at `address`, not yet connected."""
  return _jax.get_distributed_runtime_client(
      address,
      process,
      init_timeout=60,
      heartbeat_timeout=heartbeat_secs,
      shutdown_on_destruction=False,
      use_compression=True,
  )


def set_coordination(
    address: str, process: int, num_processes: int, client: Any
) -> None:
  """Lets JAX use a client in place of one of its own."""
  state = distributed.global_state
  state.coordinator_address = address
  state.process_id = process
  state.num_processes = num_processes
  state.client = client
