"""How processes that connect learn each other's addresses.

Before the first transfer between some processes Gloo, in each of them, writes
its address into JAX's coordination service, and waits for those of the others.
Each process has a service of its own, so a thread here carries addresses over:

     node 0        service of 0         service of 1        node 1
    1. | address of 0 -->|                    |<-- address of 1 |
    2. | waits for that of 1                waits for that of 0 |
    3. |<======== each offers its own, and fetches ============>|
    4. |<-- that of 1 ---|                    |--- that of 0 -->|
    5. |<---------------- Gloo connects ----------------------->|

One that has died meanwhile offers none. An address of another kind, in place of
it, ends the wait of Gloo at once, with an exception; by itself it would last
half a minute.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import socket
import struct
import threading
import time
from typing import Any

from bamboo_jax.cluster import blobs as blobs_lib
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.wire import coordination

_KEYS = "cpu:gloo/"  # Followed by the devices, "/", and the rank of one.
_LEAST_SECS, _MOST_SECS = 0.001, 0.02  # Between two looks at the service.
_AGAIN_SECS = 0.05
_GIVE_UP_SECS = 60.0  # Gloo waits for half as long.


class _OverError(Exception):
  """One of those who meet is gone, or nobody waits any more."""


class Rendezvous:
  """Carries addresses between the process of node `number` and others.

  Args:
    peers: Where the others are.
    is_lost: Whether a node is gone for good.
  """

  def __init__(
      self,
      number: int,
      peers: blobs_lib.Peers,
      *,
      is_lost: Callable[[int], bool],
  ) -> None:
    self._number = number
    self._peers = peers
    self._is_lost = is_lost
    self._lock = threading.Lock()
    self._seen: set[str] = set()

  @contextlib.contextmanager
  def meet(self, nodes: Sequence[int]) -> Iterator[None]:
    """Lets this process connect with others meanwhile, if it has not yet."""
    del nodes  # Gloo writes whom it connects.
    over = threading.Event()
    _start(self._look, over)
    try:
      yield
    finally:
      over.set()

  def _look(self, over: threading.Event) -> None:
    """Carries each address that Gloo writes."""
    pause_secs = _LEAST_SECS
    while not over.wait(pause_secs):
      pause_secs = min(1.2 * pause_secs, _MOST_SECS)
      for key, address in compat.coordination_values(_KEYS).items():
        with self._lock:
          is_new = key not in self._seen
          self._seen.add(key)
        group, rank = parse_key(key)
        if is_new and group[rank] == self._number:
          _start(self._carry, key, address)

  def _carry(self, own: str, address: bytes) -> None:
    self._peers.offer(own, address)
    group, own_rank = parse_key(own)
    end_secs = time.monotonic() + _GIVE_UP_SECS

    def check() -> None:
      if any(map(self._is_lost, group)) or time.monotonic() > end_secs:
        raise _OverError

    for rank, node in enumerate(group):
      if rank != own_rank:
        key = f"{own.rpartition('/')[0]}/{rank}"
        try:
          found = self._fetch(node, key, check)
        except _OverError:  # Who live do not connect with the dead.
          found = make_unusable(address)
        compat.set_coordination_value(key, found)

  def _fetch(self, node: int, key: str, check: Callable[[], None]) -> bytes:
    while True:
      check()
      try:
        return self._peers.fetch(node, key, check)
      except OSError:
        time.sleep(_AGAIN_SECS)


def parse_key(key: str) -> tuple[list[int], int]:
  """Returns the nodes that connect, and the place of one among them."""
  devices, _, rank = key.removeprefix(_KEYS).rpartition("/")
  group = [coordination.node_of(int(device)) for device in devices.split(",")]
  return group, int(rank)


def make_unusable(address: bytes) -> bytes:
  """Returns a process's address, of a kind that others refuse.

  Gloo writes host name and `sockaddr_storage`, each after its length. Raises
  `ValueError` if it does not.
  """
  try:
    (name_length,) = struct.unpack_from("<Q", address)
    length, family = struct.unpack_from("<QH", address, 8 + name_length)
  except struct.error:
    length = family = -1
  if length < 128 or family != socket.AF_INET:
    raise ValueError(f"No address of Gloo: {address!r}.")
  start = 16 + name_length
  other = struct.pack("<H", socket.AF_INET6)
  return address[:start] + other + address[start + 2 :]


def _start(work: Callable[..., None], *args: Any) -> None:
  threading.Thread(
      target=work, args=args, name="rendezvous", daemon=True
  ).start()
