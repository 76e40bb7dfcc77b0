"""A server of HTTP in a thread, to which anybody may connect."""

from collections.abc import Callable
import socketserver
import sys
import time
from typing import Any

from absl import logging

from bamboo_jax.base import threads
from bamboo_jax.net import addresses, callers as callers_lib

_PAUSE_SECS = 0.1
_BACKLOG = 512


class WebServer(socketserver.ThreadingTCPServer):
  """A thread for each connection; if there are too many, the oldest has to go.

  Attributes:
    callers: Connections that have to go; a handler that takes long over a whole request removes
      its own.
  """

  allow_reuse_address = daemon_threads = True
  request_queue_size = _BACKLOG

  def __init__(
      self,
      address: addresses.Address,
      handler: Callable[..., socketserver.BaseRequestHandler],
      *,
      most: int,
      name: str,
  ) -> None:
    """Serves from now on, in daemon threads; raises `OSError` if the port is in use."""
    self.address_family, self.callers = address.family, callers_lib.Callers(most)
    super().__init__(address.parts[:2], handler)
    threads.call_beside(self.serve_forever, name=name)

  def get_request(self) -> Any:
    """Accepts a caller; `OSError` if that fails, which `serve_forever` ignores."""
    try:
      return super().get_request()
    except OSError:
      time.sleep(_PAUSE_SECS)  # Else too many open files would make it spin.
      raise

  def process_request(self, request: Any, client_address: Any) -> None:
    self.callers.add(request)
    super().process_request(request, client_address)

  def shutdown_request(self, request: Any) -> None:
    self.callers.remove(request)
    super().shutdown_request(request)

  def handle_error(self, request: Any, client_address: Any) -> None:
    """Logs an error of ours; a caller may go away, and strangers may say anything."""
    if not isinstance(sys.exception(), OSError | UnicodeError):
      logging.exception("An answer has failed.")
