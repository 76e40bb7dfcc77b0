"""Serves the page of a run on loopback, to clients with its token.

  GET  /              the page, without data
  GET  /value         the value of `facts.find`
  GET  /events        server-sent events: the entries of it that have changed
  POST /act           {"kind": "kill", "node": "n3"}, with the header X-Token

The server is a thread, with one for each connection; nothing that happens to it or to a browser
reaches the run. Without a browser it reads nothing.
"""

from collections.abc import Callable, Iterator
import functools
import hashlib
import hmac
from http import server as http_server
import json
import threading
import time
from typing import Any
import urllib.parse

from bamboo_jax.net import addresses, web
from bamboo_jax.report.live import words

_PAUSE_SECS = 0.1  # Between two events.
# Longer pauses for what is long, and changes with every step.
_PAUSES = {"rows": 2.0, "curve": 0.5, "time": 0.5, "events": 0.5}
_QUIET_SECS = 5.0  # After which a comment shows whether the browser is still there.
_HOST = "127.0.0.1"
_MAX_CONNECTIONS = 64
_MAX_BYTES = 1 << 16  # Of a request.

Read = Callable[[], dict[str, Any]]
Act = Callable[[str, str], None]


def make_token(secret: str) -> str:
  """Returns the token of a run's page, which does not reveal the secret."""
  return hashlib.sha256(f"page {secret}".encode()).hexdigest()[:32]


def start(read: Read, *, token: str, port: int = 0, act: Act | None = None) -> str:
  """Serves the page from now on, in daemon threads; returns its address.

  Args:
    read: Returns the value, see `feed.Feed.read`; is called in other threads, one at a time.
    token: Needed for everything but the empty page.
    act: Carries out a button, see `strikes.Strikes.cause`; raises `ValueError`.

  Raises `OSError` if the port is in use.
  """
  handler = functools.partial(_Handler, _Latest(read), token, act)
  try:
    server = web.WebServer(addresses.find(_HOST, port), handler, most=_MAX_CONNECTIONS, name="page")
  except OSError as error:
    raise OSError(error.errno, f"port {port}: {error.strerror}.") from error
  return f"http://{_HOST}:{server.server_address[1]}/#token={token}"


class _Latest:
  """The newest value, read at most every tenth of a second for all browsers."""

  def __init__(self, read: Read) -> None:
    self._read = read
    self._at_secs = -_PAUSE_SECS
    self._reading = threading.Lock()
    self._value: dict[str, Any] = {}

  def get(self) -> dict[str, Any]:
    """Returns the value; the last one if nothing can be read."""
    with self._reading:
      if time.monotonic() >= self._at_secs + _PAUSE_SECS:
        try:
          self._value = self._read()
        except (OSError, ValueError) as error:  # The store may be away.
          head = {**self._value.get("head", {}), "state": f"not known: {error}"}
          self._value = {**self._value, "head": head}
        self._at_secs = time.monotonic()
      return self._value


def stream(get: Callable[[], dict[str, Any]], pause_secs: float = _PAUSE_SECS) -> Iterator[str]:
  """Yields events with the entries of a value that have changed, for as long as it is asked."""
  sent: dict[str, Any] = {}
  sent_secs: dict[str, float] = {}
  told_secs = time.monotonic()
  while True:
    value, now = get(), time.monotonic()
    changed = {
        name: entry
        for name, entry in value.items()
        if (name not in sent or sent[name] != entry)
        and now >= sent_secs.get(name, 0.0) + _PAUSES.get(name, 0.0)
    }
    if changed or now > told_secs + _QUIET_SECS:
      sent |= changed
      sent_secs |= dict.fromkeys(changed, now)
      told_secs = now
      yield f"data: {json.dumps(changed, separators=(',', ':'))}\n\n" if changed else ":\n\n"
    time.sleep(pause_secs)


class _Handler(http_server.BaseHTTPRequestHandler):
  """Answers one request of a connection."""

  server: web.WebServer
  default_request_version = "HTTP/1.0"  # Of what is no request, so that its answer has a status.

  def __init__(self, latest: _Latest, token: str, act: Act | None, *request: Any) -> None:
    self.latest, self.token, self.act = latest, token, act
    super().__init__(*request)

  def do_GET(self) -> None:
    self.server.callers.remove(self.request)
    path = urllib.parse.urlsplit(self.path).path
    if path == "/":
      self._answer(200, words.render_page(), "text/html")
    elif path not in ("/value", "/events"):
      self._answer(404, "There is no such page.")
    elif self._check():
      if path == "/value":
        self._answer(200, json.dumps(self.latest.get(), separators=(",", ":")), "application/json")
        return
      self._answer(200, "", "text/event-stream")
      for event in stream(self.latest.get):
        self.wfile.write(event.encode())

  def do_POST(self) -> None:
    size = self.headers.get("Content-Length", "")
    is_short = size.isdecimal() and len(size) < 10 and int(size) <= _MAX_BYTES
    content = self.rfile.read(int(size)) if is_short else b""
    self.server.callers.remove(self.request)
    if not self._check():
      return
    if self.act is None or urllib.parse.urlsplit(self.path).path != "/act":
      self._answer(404, "This page shows a run of other machines: no buttons.")
      return
    try:
      asked = json.loads(content)
      self.act(str(asked["kind"]), str(asked["node"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
      self._answer(400, f"{error}")
    else:
      self._answer(200, "")

  def log_message(self, *unused: Any) -> None:
    """Says nothing."""

  def _check(self) -> bool:
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
    given = self.headers.get("X-Token") or query.get("token", [""])[0]
    if not (allowed := hmac.compare_digest(given.encode(), self.token.encode())):
      self._answer(403, "Wrong token: open the address that the run printed.")
    return allowed

  def _answer(self, status: int, text: str, kind: str = "text/plain") -> None:
    self.send_response(status)
    self.send_header("Content-Type", f"{kind}; charset=utf-8")
    self.send_header("Cache-Control", "no-store")
    self.end_headers()
    self.wfile.write(text.encode())
