"""The private API of JAX for programs over several processes.

As in `compat`: if JAX changes, this module raises an error.
"""

from typing import Any

from jax._src import distributed, xla_bridge
from jax._src.lib import _jax

# JAX must never decide that a worker is dead: agents do that, much sooner.
_NEVER_SECS = 30 * 24 * 3600
_CONNECT_SECS = 60


def start_coordination_service(address: str) -> Any:
  """Starts a service of JAX in this process, for one client.

  Raises `RuntimeError` if it cannot listen at `address`.
  """
  return _jax.get_distributed_runtime_service(address, 1, heartbeat_timeout=_NEVER_SECS)


def connect_coordination(service: Any, address: str) -> Any:
  """Connects this process to a service; returns the client.

  Raises `RuntimeError` if `address` is not that of a service.
  """
  distributed.global_state.service = service
  client = _jax.get_distributed_runtime_client(
      address,
      0,
      init_timeout=_CONNECT_SECS,
      heartbeat_timeout=_NEVER_SECS,
      shutdown_on_destruction=False,
  )
  client.connect()
  return client


def connect_cpu_backend(process: int, num_processes: int, client: Any, *, host: str) -> None:
  """Gives the CPU backend of this process its place among many processes.

  Call before JAX starts. Transfers listen on `host`, a numeric address: JAX
  would take the machine's name, which others may not reach. JAX starts its
  backends by priority, CPU last. The other backends do not see `client`, so
  their devices are those of this process.
  """

  def make_client() -> Any:
    state = distributed.global_state
    state.process_id, state.num_processes = process, num_processes
    state.client = client
    return xla_bridge.make_cpu_client(
        _jax.make_gloo_tcp_collectives(distributed_client=client, hostname=host)
    )

  xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)


def coordination_values(prefix: str) -> dict[str, bytes]:
  """Returns the values under `prefix` in the coordination service."""
  client: Any = distributed.global_state.client
  return dict(client.key_value_dir_get_bytes(prefix))


def set_coordination_value(key: str, value: bytes) -> bool:
  """Writes a value to the coordination service; False if the key exists."""
  client: Any = distributed.global_state.client
  try:
    client.key_value_set_bytes(key, value)
  except RuntimeError as error:
    if "ALREADY_EXISTS" not in str(error):
      raise
    return False
  return True


def let_cache_be_written() -> None:
  """Lets this process write to JAX's compilation cache, if there is one.

  JAX reserves that for process 0. Call once JAX has its devices: from then on
  it uses the process's number for nothing else.
  """
  distributed.global_state.process_id = 0
