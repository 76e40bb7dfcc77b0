"""How processes that connect learn each other's addresses.

Before the first transfer between some processes, Gloo in each of them writes
its address to JAX's coordination service, and waits for those of the others.
Each process has a service of its own, so a thread here copies the addresses:

     node 0        service of 0         service of 1        node 1
    1. |<======== each announces itself, and waits ============>|
    2. | address of 0 -->|                    |<-- address of 1 |
    3. | waits for that of 1                waits for that of 0 |
    4. |<======== each offers its own, and fetches ============>|
    5. |<-- that of 1 ---|                    |--- that of 0 -->|
    6. |<---------------- Gloo connects ----------------------->|

Gloo waits for half a minute, and processes that failed to connect can never
connect again; so no process enters Gloo before all are there. A process that
has died since offers no address. An address of another family instead of it
ends Gloo's wait at once, with an exception. A process that has all addresses
may wait for a call from a dead node, or from one that gave up: then this
process calls itself, and hangs up.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import hashlib
import socket
import struct
import threading
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.spmd.processes import coordination, private_jax
from bamboo_jax.runtime.wire import transport as transport_lib

_KEYS = "cpu:gloo/"  # Followed by the devices, "/", and a rank.
_LEAST_SECS, _MOST_SECS = 0.001, 0.02  # Between two looks at the service.
_AGAIN_SECS = 0.05
_CALL_SECS = 5.0


class Rendezvous:
  """Copies addresses between the process of node `number` and others.

  Args:
    exchange: Connects this process with others.
    is_lost: Whether a node is gone permanently.
  """

  def __init__(
      self,
      number: base.NodeId,
      exchange: transport_lib.Transport,
      *,
      is_lost: Callable[[base.NodeId], bool],
  ) -> None:
    self._number = number
    self._exchange = exchange
    self._is_lost = is_lost
    self._lock = threading.Lock()
    self._seen: set[str] = set()
    self._met: set[tuple[base.NodeId, ...]] = set()

  @contextlib.contextmanager
  def meet(self, nodes: Sequence[base.NodeId], cut: Callable[[], None]) -> Iterator[None]:
    """Lets this process connect with others inside the context.

    Does nothing if they are connected. Blocks until all of `nodes`, in the
    order of their devices, have arrived; raises `ConnectionError` if one of
    them is lost before. If one is lost later, calls `cut` to break the new
    connections.
    """
    group = tuple(nodes)
    with self._lock:  # Groups that have lost a node never meet again.
      self._met -= {g for g in self._met if any(map(self._is_lost, g))}
    if group not in self._met:
      self._wait_for_all(group)
    over = threading.Event()
    _start(self._look, over, cut)
    try:
      yield
      self._met.add(group)  # Only if nothing was raised.
    finally:
      over.set()

  def _wait_for_all(self, group: tuple[base.NodeId, ...]) -> None:
    here = f"here {hashlib.sha256(repr(group).encode()).hexdigest()}"
    others = [node for node in group if node != self._number]
    try:
      for node in others:  # First all sends, which wait for no receive.
        self._exchange.send(node, here, [])
      for node in others:
        self._exchange.receive(node, here)
    except (base.AttemptOverError, base.PeerRemovedError) as error:
      raise ConnectionError(f"Nodes {others} cannot connect: {error}") from error

  def _look(self, over: threading.Event, cut: Callable[[], None]) -> None:
    """Copies each address that Gloo writes."""
    pause_secs = _LEAST_SECS
    while not over.wait(pause_secs):
      pause_secs = min(1.2 * pause_secs, _MOST_SECS)
      values = private_jax.coordination_values(_KEYS)
      if over.is_set():
        return  # They may belong to the next meeting, which has its own `over`.
      for key, address in values.items():
        with self._lock:
          is_new = key not in self._seen
          self._seen.add(key)
        group, rank = parse_key(key)
        if is_new and group[rank] == self._number:
          _start(self._carry, key, address, over, cut)

  def _carry(
      self, own: str, address: bytes, over: threading.Event, cut: Callable[[], None]
  ) -> None:
    group, own_rank = parse_key(own)
    others = {r: node for r, node in enumerate(group) if r != own_rank}
    content = [np.frombuffer(address, np.uint8)]
    for node in others.values():
      # `receive` will tell.
      with contextlib.suppress(base.AttemptOverError, base.PeerRemovedError):
        self._exchange.send(node, own, content)
    for rank, node in others.items():
      key = f"{own.rpartition('/')[0]}/{rank}"
      try:
        (found,) = self._exchange.receive(node, key)
        found = found.tobytes()
      except (base.AttemptOverError, base.PeerRemovedError):
        found = make_unusable(address)  # A dead node is not called.
      private_jax.set_coordination_value(key, found)
    while not (over.wait(_AGAIN_SECS) or any(map(self._is_lost, group))):
      pass
    if not over.is_set():
      _end_waits(address)
    while not over.wait(_AGAIN_SECS):
      cut()  # Also connections to processes that have given up.


def parse_key(key: str) -> tuple[list[base.NodeId], int]:
  """Returns the nodes that connect, and the rank of one among them."""
  devices, _, rank = key.removeprefix(_KEYS).rpartition("/")
  group = [coordination.node_of(int(device)) for device in devices.split(",")]
  return group, int(rank)


def make_unusable(address: bytes) -> bytes:
  """Returns an address of Gloo with another family, which peers reject.

  Raises `ValueError` if `address` is not an address of Gloo.
  """
  start, _, family = _find_parts(address)
  is_ipv4 = family == socket.AF_INET
  other = struct.pack("<H", socket.AF_INET6 if is_ipv4 else socket.AF_INET)
  return address[:start] + other + address[start + 2 :]


def parse_address(address: bytes) -> tuple[tuple[str, int], list[int]]:
  """Decodes an address of Gloo.

  Returns the host and port at which its process listens, and the numbers with
  which the peers that it waits for identify themselves when they call.

  Raises `ValueError` if `address` is not an address of Gloo.
  """
  start, end, family = _find_parts(address)
  (port,) = struct.unpack_from("!H", address, start + 2)
  where, num_bytes = (4, 4) if family == socket.AF_INET else (8, 16)
  host = address[start + where : start + where + num_bytes]
  numbers = [number for (number,) in struct.iter_unpack("<q", address[end:])]
  return (socket.inet_ntop(family, host), port), numbers


def _find_parts(address: bytes) -> tuple[int, int, int]:
  """Returns where `sockaddr_storage` begins and ends, and its family.

  An address of Gloo consists of the host name and `sockaddr_storage`, each
  after its length, and of 8-byte integers.
  """
  try:
    (name_length,) = struct.unpack_from("<Q", address)
    length, family = struct.unpack_from("<QH", address, 8 + name_length)
  except struct.error:
    length = family = -1
  # The size of `sockaddr_storage` on Linux.
  if length < 128 or family not in (socket.AF_INET, socket.AF_INET6):
    raise ValueError(f"No address of Gloo: {address!r}.")
  start = 16 + name_length
  if (len(address) - start - length) % 8:
    raise ValueError(f"No address of Gloo: {address!r}.")
  return start, start + length, family


def _end_waits(address: bytes) -> None:
  """Calls this process in the name of each awaited peer, and hangs up."""
  place, numbers = parse_address(address)
  for number in numbers:
    try:
      with socket.create_connection(place, _CALL_SECS) as caller:
        caller.sendall(struct.pack("<q", number))
    except OSError as error:  # Gloo has just given up by itself.
      logging.warning("No process listens at %s:%d: %s", *place, error)


def _start(work: Callable[..., None], *args: Any) -> None:
  threading.Thread(target=work, args=args, name="rendezvous", daemon=True).start()
