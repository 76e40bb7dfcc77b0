"""The private API of JAX that the project uses, in one place.

Tested with jax 0.10.2, and written against the source of 0.11.2 as well. If JAX
changes, this module raises an error instead of failing inside a step.
"""

from collections.abc import Callable
import copy
import dataclasses
import functools
import threading
from typing import Any

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


def drop_unused(traced: jax.stages.Traced) -> core.Jaxpr:
  """Returns a traced program without equations whose results are not used."""
  jaxpr = traced.jaxpr.jaxpr
  return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


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


@dataclasses.dataclass(frozen=True)
class Compilation:
  """A program that JAX asks XLA to compile, for certain devices.

  Attributes:
    fingerprint: Hash of the program, shapes, donations, shardings, kinds of
      memory, options of XLA, versions, and the kind of device; not of the
      particular devices.
    compile: Returns the executable; takes seconds.
    load: Returns the executable from the result of `serialize` for this
      fingerprint, for the devices of this one. Runs it as machine code: pass
      trusted data only.
  """

  fingerprint: str
  compile: Callable[[], Any]
  load: Callable[[bytes], Any]


_compile_or_get_cached = compiler.compile_or_get_cached
_is_cache_used = compilation_cache.is_cache_used
_compiling = threading.local()  # `here`: this thread compiles for `answer`.
_hash_accelerator_config = cache_key._hash_accelerator_config


def intercept_compilations(answer: Callable[[Compilation], Any]) -> None:
  """Replaces JAX's compilation by `answer`, from now on.

  `Compilation.compile` does not use JAX's persistent cache: XLA:CPU serializes
  an executable that it has loaded without its functions. Three kinds of
  programs never get here: those that call back into Python belong to their
  process, on GPUs compiling for several processes is a collective, and those
  for devices that are not there cannot be loaded.
  """

  def compile_or_ask(
      backend: Any,
      module: Any,
      devices: Any,
      options: Any,
      callbacks: Any,
      executable_devices: Any,
      *rest: Any,
  ) -> Any:
    given = (backend, module, devices, options, callbacks, executable_devices)
    run = functools.partial(_compile_or_get_cached, *given, *rest)
    spans_processes = len({device.process_index for device in devices.flat}) > 1
    is_absent = isinstance(backend, _jax.CompileOnlyPyClient)
    if callbacks or is_absent or (spans_processes and backend.platform != "cpu"):
      return run()

    def compile_here() -> Any:
      _compiling.here = True
      try:
        return run()
      finally:
        _compiling.here = False

    placeless = _drop_device_numbers(options)
    return answer(
        Compilation(
            cache_key.get(module, devices, placeless, backend),
            compile=compile_here,
            load=lambda data: backend.deserialize_executable(data, executable_devices, options),
        )
    )

  compiler.compile_or_get_cached = compile_or_ask
  compilation_cache.is_cache_used = lambda backend: (
      not getattr(_compiling, "here", False) and _is_cache_used(backend)
  )
  cache_key._hash_accelerator_config = _hash_accelerators


def _hash_accelerators(hash_obj: Any, devices: np.ndarray) -> None:
  """Hashes kinds of devices: a CPU's topology tells processes apart."""
  if devices.flat[0].platform == "cpu":
    cache_key._hash_devices(hash_obj, devices)
  else:
    _hash_accelerator_config(hash_obj, devices)


def _drop_device_numbers(options: Any) -> Any:
  """Returns XLA's options as if for the first devices."""
  options, devices = copy.deepcopy(options), options.device_assignment
  if devices is not None:
    shape = (devices.replica_count(), devices.computation_count())
    numbers = np.arange(np.prod(shape)).reshape(shape)
    options.device_assignment = xla_client.DeviceAssignment.create(numbers)
  return options
