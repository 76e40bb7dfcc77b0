"""Ends the wait of processes for one that has died before they could connect.

Before the first transfer between some processes each of them publishes its
address with JAX's coordination service and waits for those of the others. One
that has died meanwhile will never publish it, and the wait would end only after
half a minute. An address of another kind, where that of the dead was expected,
ends it at once, with an exception.

     node 0                  service                  node 1
    1. | address of 0 -------->|                        x dies
    2. | waits for that of 1 . |
    3. | give_up: unusable --->|   as the address of 1
    4. |<----------------------|   the wait ends; Gloo raises
"""

from collections.abc import Collection
import socket
import struct
import threading

from absl import logging

from bamboo_jax.cluster import client as client_lib
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.wire import coordination

_KEYS = "cpu:gloo/"  # Followed by the devices, "/", and the rank of one.
_AGAIN_SECS = 0.05


def find_awaited(keys: Collection[str], dead: Collection[int]) -> list[str]:
  """Returns the keys that `dead` devices will never write."""
  known = set(keys)
  awaited = []
  for group in sorted({key.rpartition("/")[0] for key in known}):
    devices = group.removeprefix(_KEYS).split(",")
    for rank, device in enumerate(devices):
      key = f"{group}/{rank}"
      if device.isdecimal() and int(device) in dead and key not in known:
        awaited.append(key)
  return awaited


def break_waits(client: client_lib.Client) -> None:
  """Ends such waits whenever a member of the adopted view is lost; for ever."""
  adopted = threading.Event()
  while True:
    view = client.wait_interrupt(None)
    while (before := client.adopted).number < view.number:
      # More may be lost by now than in the view that interrupts.
      lost = before.numbers - client.newest.numbers
      try:
        give_up([coordination.device_of(number) for number in lost])
      except RuntimeError as error:  # The service may have died, too.
        logging.warning("Waits for the dead may last: %s", error)
      adopted.wait(_AGAIN_SECS)


def give_up(dead: Collection[int]) -> None:
  """Ends all waits for the processes of some devices."""
  written = compat.coordination_values(_KEYS)
  for key in find_awaited(written, set(dead)):
    group = key.rpartition("/")[0]
    some = next(v for k, v in written.items() if k.rpartition("/")[0] == group)
    if (unusable := make_unusable(some)) is not None:
      compat.set_coordination_value(key, unusable)


def make_unusable(address: bytes) -> bytes | None:
  """Returns a process's address, of a kind that others refuse.

  None if it is not as Gloo writes it: host name and `sockaddr_storage`, each
  after its length.
  """
  try:
    (name_length,) = struct.unpack_from("<Q", address)
    length, family = struct.unpack_from("<QH", address, 8 + name_length)
  except struct.error:
    return None
  if length < 128 or family != socket.AF_INET:
    return None
  start = 16 + name_length
  other = struct.pack("<H", socket.AF_INET6)
  return address[:start] + other + address[start + 2 :]
