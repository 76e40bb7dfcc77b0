"""JAX's coordination service with slots, and how a worker connects to it.

The service runs in a process of its own, so that any worker may die. JAX fixes
the number of processes at the start; so that workers may come later, there are
more of them than workers. Each is a slot. Phantom clients register all slots,
publish the devices that they will have, and leave; then a real worker may take
any slot at any time. A slot is used once: on CPU what is left of its first user
cannot be removed. Slot 0 is never used.

When slots run out, or the service has died, a process takes a slot of another
service: it disconnects and connects, without being started again. The number
of a device comes from that of its node and not from the slot. Programs that
were compiled before are found again, see `runtime.executables`.

With slots, whatever spans all processes of JAX would wait for ever. Programs
name their devices.
"""

from collections.abc import Sequence
from concurrent import futures
import socket

from absl import logging
import jax

from bamboo_jax.runtime import compat
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.executables import store

_ANSWER_SECS = 1.0
_CONNECT_SECS = 10  # It answers in milliseconds.
_DEVICES_PER_PROCESS = 2048  # Numbers that XLA:CPU sets apart for each.


class Service:
  """The coordination service; ends with the object.

  Args:
    port: Port on the loopback interface; agents come by `cluster.proxy`.
    numbers: The node that each slot is for, from slot 1 on.
  """

  def __init__(self, port: int, *, numbers: Sequence[int]) -> None:
    address = f"127.0.0.1:{port}"
    processes = [0, *(number + 1 for number in numbers)]
    self._service = compat.make_coordination_service(address, len(processes))
    clients = [
        compat.make_coordination_client(address, slot)
        for slot in range(len(processes))
    ]
    with futures.ThreadPoolExecutor(
        len(clients)
    ) as pool:  # Each waits for all.
      list(pool.map(lambda client: client.connect(), clients))
    topologies = [_local_topology(process) for process in processes]
    for process, topology in zip(processes, topologies, strict=True):
      key = f"cpu:local_topology/cpu/{process}"
      clients[0].key_value_set_bytes(key, topology)
    clients[0].key_value_set_bytes(
        "cpu:global_topology/cpu",
        b"".join(_field(1, topology) for topology in topologies),
    )
    for client in clients:
      client.shutdown()


def connect(
    address: str,
    *,
    slot: int,
    num_slots: int,
    number: int,
    host: str = "127.0.0.1",
) -> None:
  """Makes this process that of a node; call before JAX is asked for devices.

  Args:
    slot: From 1; never used before.
    num_slots: Of the service, slot 0 included.
    host: Where other processes reach this one for transfers.

  Raises `ConnectionError` if the service does not answer; this process is then
  in none, and may try another.
  """
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  client = compat.make_coordination_client(
      address, slot, timeout_secs=_CONNECT_SECS
  )
  try:
    client.connect()
  except RuntimeError as error:
    raise ConnectionError(
        f"The coordination service at {address} does not answer."
    ) from error
  compat.connect_cpu_backend(address, number + 1, num_slots, client, host=host)
  del client  # Whoever refers to it keeps the connection.
  devices_lib.transfer_devices()
  compat.let_cache_be_written()
  store.use().share()


def disconnect() -> None:
  """Ends what `connect` began, so that it may be called again.

  The service and any peer may be dead. All arrays and programs are lost;
  nothing may refer to them any more, nor share their memory, as `np.asarray`
  does.
  """
  if not compat.disconnect():
    logging.warning(
        "Arrays or programs from before are still in use; they keep their "
        "memory and connections."
    )


def ask_service() -> None:
  """Returns once the service answers; never if it is silent for good."""
  compat.coordination_values("ping")


def answers(address: str) -> bool:
  """Returns whether a service does, that this process is not connected to.

  It speaks first; a proxy in between accepts also if the service is dead.
  """
  host, _, port = address.rpartition(":")
  try:
    with socket.create_connection((host, int(port)), _ANSWER_SECS) as sock:
      return bool(sock.recv(1))
  except OSError:
    return False


def devices_by_slot() -> dict[int, jax.Device]:
  """Returns the device of each slot that transfers join."""
  devices = {}
  for device in devices_lib.transfer_devices():
    devices.setdefault(device.process_index, device)
  return devices


def device_of(number: int) -> int:
  """Returns the number of the device of a node."""
  return (number + 1) * _DEVICES_PER_PROCESS


def _local_topology(process: int) -> bytes:
  """Returns the protobuf in which a process describes its device.

  These are the fields of `LocalTopologyProto` and `DeviceProto` that XLA:CPU
  fills in.
  """
  number = process * _DEVICES_PER_PROCESS
  device = _number(4, number)
  device += _field(8, b"cpu")
  device += _field(9, f"CpuDevice(id={number})".encode())
  device += _field(10, f"cpu:{number}".encode())
  return _number(1, process) + _field(2, b"0" * 36) + _field(3, device)


def _number(tag: int, value: int) -> bytes:
  return _varint(tag << 3) + _varint(value) if value else b""


def _field(tag: int, content: bytes) -> bytes:
  return _varint(tag << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
  out = bytearray()
  while value > 127:
    out.append(value & 127 | 128)
    value >>= 7
  out.append(value)
  return bytes(out)
