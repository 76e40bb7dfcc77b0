"""JAX's coordination service with slots, and how a worker connects to it.

The service runs in a process of its own, so that any worker may die. JAX fixes
the number of processes at the start; so that workers may come later, there are
more of them than workers. Each is a slot. Phantom clients register all slots,
publish the devices that they will have, and leave; then a real worker may take
any slot at any time. A slot is used once: on CPU what is left of its first user
cannot be removed. Slot 0 is never used, as its user publishes the list of all
devices anew.

With slots, whatever spans all processes of JAX would wait for ever. Programs
name their devices.
"""

import threading
from typing import Any

import jax

from bamboo_jax.runtime import compat

# JAX must never decide that a worker is dead: agents do that, much sooner.
_NEVER_SECS = 30 * 24 * 3600
_DEVICES_PER_SLOT = 2048  # Numbers of devices that XLA:CPU sets apart for each.


class Service:
  """The coordination service; ends with the object.

  Args:
    port: Port on the loopback interface, or on `host`.
    host: Where to listen.
    num_slots: Number of slots, slot 0 included.
  """

  def __init__(
      self, port: int, *, num_slots: int, host: str = "127.0.0.1"
  ) -> None:
    address = f"{host}:{port}"
    self._service = compat.make_coordination_service(
        address, num_slots, heartbeat_secs=_NEVER_SECS
    )
    clients = [_make_client(address, slot) for slot in range(num_slots)]
    threads = [threading.Thread(target=c.connect) for c in clients]
    for thread in threads:  # Each waits for all.
      thread.start()
    for thread in threads:
      thread.join()
    topologies = [_local_topology(slot) for slot in range(num_slots)]
    for slot, topology in enumerate(topologies):
      clients[0].key_value_set_bytes(f"cpu:local_topology/cpu/{slot}", topology)
    clients[0].key_value_set_bytes(
        "cpu:global_topology/cpu",
        b"".join(_field(1, topology) for topology in topologies),
    )
    for client in clients:
      client.shutdown()


def connect(address: str, *, slot: int, num_slots: int) -> None:
  """Makes this process the one of a slot; call before JAX is asked for devices.

  Args:
    address: Host and port of the service.
    slot: From 1; never used before.
    num_slots: Number of slots of the service.
  """
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  client = _make_client(address, slot)
  compat.set_coordination(address, slot, num_slots, client)
  client.connect()


def devices_by_slot() -> dict[int, jax.Device]:
  """Returns the first device of each slot, as this process knows them."""
  devices = {}
  for device in jax.devices():
    devices.setdefault(device.process_index, device)
  return devices


def _make_client(address: str, slot: int) -> Any:
  return compat.make_coordination_client(
      address, slot, heartbeat_secs=_NEVER_SECS
  )


def _local_topology(slot: int) -> bytes:
  """Returns what the process of a slot will say of its device, as a protobuf.

  These are the fields of `LocalTopologyProto` and `DeviceProto` that XLA:CPU
  fills in.
  """
  number = slot * _DEVICES_PER_SLOT
  device = _number(4, number)
  device += _field(8, b"cpu")
  device += _field(9, f"CpuDevice(id={number})".encode())
  device += _field(10, f"cpu:{number}".encode())
  return _number(1, slot) + _field(2, b"0" * 36) + _field(3, device)


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
