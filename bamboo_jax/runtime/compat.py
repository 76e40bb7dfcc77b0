"""The private API of JAX that the project uses, in one place.

Tested with jax 0.10.2, and written against the source of 0.11.2 as well. If JAX
changes, this module raises an error instead of failing inside a step.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax._src import (
    cache_key,
    compilation_cache,
    compiler,
    distributed,
    hardware_utils,
    xla_bridge,
)
from jax._src.lib import _jax, xla_client
from jax.extend import core
from jax.interpreters import partial_eval
import numpy as np

# Returns the VJP function of primal arguments and residuals. Without arrays, it
# may be carried from the trace of a forward to that of a backward program.
JoinVjp = Callable[[Any, Any], Callable[..., Any]]


def split_vjp(vjp: Any) -> tuple[JoinVjp, list[Any]]:
  """Splits a function from `jax.vjp` into structure and residuals.

  The residuals exclude the arguments of the function, so that parameters and
  inputs are not kept once more for each microbatch. Raises `RuntimeError` if
  this version of JAX stores them in another way.
  """
  # One level of the pytree: arguments, then other residuals; the rest is
  # structure.
  parts, outer = jax.tree.flatten(vjp, is_leaf=lambda x: x is not vjp)
  if not parts or parts[0] is not getattr(vjp, "args_res", None):
    raise RuntimeError(
        f"jax {jax.__version__} is not supported: the function that jax.vjp "
        "returns does not begin with args_res; use jax>=0.10,<0.12."
    )
  residuals, inner = jax.tree.flatten(parts[1:])

  def join(args: Any, residuals: list[Any]) -> Callable[..., Any]:
    rest = jax.tree.unflatten(inner, residuals)
    whole = [jax.tree.leaves(args), *rest]
    joined: Callable[..., Any] = jax.tree.unflatten(outer, whole)
    return joined

  return join, residuals


def drop_unused(jaxpr: core.Jaxpr, wanted: Sequence[bool]) -> tuple[core.Jaxpr, list[bool]]:
  """Returns a program with the `wanted` results only, and which arguments they depend on."""
  program, used = partial_eval.dce_jaxpr(jaxpr, wanted)
  return program, used


def sees_nvidia_gpu() -> bool:
  """Returns whether JAX would start the backend "cuda"."""
  return hardware_utils.has_visible_nvidia_gpu()


def add_cpu_backend(num_devices: int) -> None:
  """Adds a process-local CPU backend, the default without an accelerator.

  Call before JAX starts.
  """
  name, given = "apart", jax.config.jax_platforms
  if given and given.split(",")[0] == "cpu":
    jax.config.update("jax_platforms", f"{name},{given}")
  xla_bridge.register_backend_factory(
      name,
      lambda: xla_client.make_cpu_client(num_devices=num_devices),
      priority=1,  # That of the CPU is 0.
      fail_quietly=False,
  )


def use_host_for_collectives(host: str) -> None:
  """Lets collectives of the CPU backend listen on `host`, a numeric address.

  JAX would take the machine's name, which others may not reach. Call before
  JAX starts.
  """

  def make_client() -> Any:
    client = distributed.global_state.client
    gloo = _jax.make_gloo_tcp_collectives(distributed_client=client, hostname=host)
    return xla_bridge.make_cpu_client(gloo)

  xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)


def has_devices() -> bool:
  """Returns whether JAX has started its backends, and with them threads."""
  return xla_bridge.backends_are_initialized()


Load = Callable[[str, Callable[[bytes], Any]], Any]
_hash_accelerator_config = cache_key._hash_accelerator_config
_hash_compile_options = cache_key._hash_serialized_compile_options


def use_cache(load: Load, save: Callable[[str, Any], None]) -> None:
  """Replaces where JAX's persistent compilation cache reads and writes.

  Keys of JAX are hashes of the program, shapes, donations, shardings, kinds of
  memory, options of XLA, versions, and the topology of the devices. Here they
  depend on the kind of devices, not on the particular ones: a program is loaded
  for other devices and in processes with other numbers of devices.

  Args:
    load: Returns the executable of a key, None if there is none; the function
      that it gets turns the result of `serialize` into an executable.
    save: Takes an executable that XLA has compiled, and its key.
  """

  # Programs that call back into this process are not kept. Those that read are told of
  # the callbacks from JAX 0.11 on, those that write until 0.10.

  def get(
      key: str, options: Any, backend: Any, devices: Any, callbacks: Sequence[Any] = ()
  ) -> tuple[Any, int | None]:
    if callbacks:
      return None, None
    found = load(key, lambda data: backend.deserialize_executable(data, devices, options))
    return (None, None) if found is None else (found, 0)

  def put(
      key: str, secs: float, name: str, backend: Any, executable: Any, callbacks: Sequence[Any] = ()
  ) -> None:
    if not callbacks:
      save(key, executable)

  compilation_cache.get_executable_and_time = cast(Any, get)
  compiler._cache_write = put  # JAX's own writes in the first process of several only.
  cache_key._hash_accelerator_config = _hash_accelerators
  cache_key._hash_serialized_compile_options = lambda hash_obj, options, **_: (
      _hash_compile_options(hash_obj, options, strip_device_assignment=True)
  )
  jax.config.update("jax_raise_persistent_cache_errors", True)


def _hash_accelerators(hash_obj: Any, devices: np.ndarray) -> None:
  """Hashes kinds of devices: a CPU's topology tells processes apart."""
  if devices.flat[0].platform == "cpu":
    cache_key._hash_devices(hash_obj, devices)
  else:
    _hash_accelerator_config(hash_obj, devices)
