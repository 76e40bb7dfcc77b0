"""Names links that drop large packets without telling the sender.

A tunnel or a switch may have a smaller MTU than both ends assume. Agents, whose
packets are small, still reach each other, while the transfers of their workers
are retransmitted forever: the run hangs, or healthy nodes are removed one after
the other.
"""

from collections.abc import Callable
import struct
import time

from absl import logging

# The start of Linux's `tcp_info`: the third byte counts consecutive timeouts;
# the third and the fifth number are the segment size and the number of
# unacknowledged segments.
INFO = struct.Struct("8B5I")
_LEAST_TIMEOUTS = 5  # Each is twice the last: 6 s or more.
_SMALL_BYTES = 1220  # Any link carries packets of this size.
_LOOK_SECS = 2.0

Ends = tuple[str, str]  # Addresses of this host and another.


def is_stuck(info: bytes) -> bool:
  """Returns whether a connection retransmits large packets in vain.

  `info` is its `tcp_info`.
  """
  fields = INFO.unpack(info)
  timeouts, segment_bytes, num_unacknowledged = (fields[2], fields[10], fields[12])
  is_large = segment_bytes > _SMALL_BYTES
  return is_large and num_unacknowledged > 0 and timeouts >= _LEAST_TIMEOUTS


def watch(find_stuck: Callable[[], set[Ends]]) -> None:
  """Warns of each stuck link; never returns."""
  known: set[Ends] = set()
  while True:
    time.sleep(_LOOK_SECS)
    found = find_stuck()
    for own, other in sorted(found - known):
      logging.warning("%s", describe(own, other))
    known = found  # Warns again if it is stuck again.


def describe(own: str, other: str) -> str:
  """Returns the problem of a link, and the remedy."""
  return (
      f"Nothing that is sent from {own} to {other} in large packets arrives. "
      "If both stay members, check the MTU between them (ping -M do -s 1400 "
      f"{other}), or set net.ipv4.tcp_mtu_probing=1 on all nodes."
  )
