"""A coordination service of JAX in each process.

JAX has all processes connect to one service, which must not die, and fixes
their number at the start. Here each process has a service of its own, on a Unix
socket that no other user can reach. It knows beforehand the devices of all
nodes that a run may ever have, because a node's number determines that of its
device; so any node may join or leave. JAX uses the service only for the
addresses of processes to connect to, which the processes exchange, see
`rendezvous`.

A program over all processes of JAX would wait forever. Programs name their
devices.
"""

from typing import Any

import jax

from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.net import addresses
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.spmd.processes import private_jax
from bamboo_jax.runtime.wire import endpoints

_DEVICES_PER_PROCESS = 2048  # Numbers that XLA:CPU reserves for each.
_GLOBAL_TOPOLOGY = "cpu:global_topology/cpu"


def connect(number: base.NodeId, *, host: str = "127.0.0.1") -> None:
  """Makes this the process of node `number`; call before JAX starts.

  Args:
    number: Number of the node; its process has the next one, because process 0
      would wait for all others.
    host: Numeric address at which other processes reach this one.
  """
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  client = start_service()
  num_processes = types.MAX_NODES + 1
  topologies = [_field(1, _local_topology(p)) for p in range(num_processes)]
  client.key_value_set_bytes(_GLOBAL_TOPOLOGY, b"".join(topologies))
  # Otherwise Gloo would take any address of a host name.
  numeric = addresses.find(host, 0)[1][0]
  private_jax.connect_cpu_backend(number + 1, num_processes, client, host=numeric)
  devices_lib.transfer_devices()
  private_jax.let_cache_be_written()


def start_service() -> Any:
  """Starts the service of this process; returns its only client.

  The service does not authenticate its clients, and a second client with the
  number of the first ends the process. So its socket has no name when this
  returns, and no file remains if the process is killed; see
  `endpoints.bind_nameless`.
  """
  bound = endpoints.bind_nameless(
      lambda name: private_jax.start_coordination_service(f"unix:{name}")
  )
  path = f"unix:/proc/self/fd/{bound.number}"
  return private_jax.connect_coordination(bound.result, path)


def devices_by_node() -> dict[base.NodeId, jax.Device]:
  """Returns the transfer device of each node that may ever exist."""
  devices: dict[base.NodeId, jax.Device] = {}
  for device in devices_lib.transfer_devices():
    devices.setdefault(base.NodeId(device.process_index - 1), device)
  del devices[base.NodeId(-1)]  # Of process 0, which has no node.
  return devices


def node_of(device: int) -> base.NodeId:
  """Returns the number of the node that has a device."""
  return base.NodeId(device // _DEVICES_PER_PROCESS - 1)


def _local_topology(process: int) -> bytes:
  """Returns the protobuf in which a process describes its device.

  These are the fields of `LocalTopologyProto` and `DeviceProto` that XLA:CPU
  sets.
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
