"""Serves the page of a run on loopback, to clients with its token.

  GET  /              the page, without data
  GET  /value         the value of `facts.find`
  GET  /events        server-sent events: the entries of it that have changed
  POST /act           {"kind": "kill", "node": "n3"}, with the header X-Token

The server is a thread; nothing that happens to it or to a browser reaches the
run. Without a browser it reads nothing.
"""

import asyncio
import atexit
from collections.abc import AsyncIterator, Callable
from concurrent import futures
import hashlib
import hmac
import json
import logging
import socket
import time
from typing import Any

from bamboo_jax.base import extras, threads
from bamboo_jax.report.live import document

_PAUSE_SECS = 0.1  # Between two events.
# Longer pauses for what is long, and changes with every step.
_PAUSES = {"rows": 2.0, "curve": 0.5, "time": 0.5, "events": 0.5}
_STOP_SECS = 2.0  # For the thread to end with the process.
_HOST = "127.0.0.1"
_MAX_CONNECTIONS = 64

Read = Callable[[], dict[str, Any]]
Act = Callable[[str, str], None]


def make_token(secret: str) -> str:
  """Returns the token of a run's page, which does not reveal the secret."""
  return hashlib.sha256(f"page {secret}".encode()).hexdigest()[:32]


def start(read: Read, *, token: str, port: int = 0, act: Act | None = None) -> str:
  """Serves the page from now on, in a daemon thread; returns its address.

  Args:
    read: Returns the value, see `feed.Feed.read`; is called in another thread.
    token: Needed for everything but the empty page.
    act: Carries out a button, see `strikes.Strikes.cause`; raises `ValueError`.

  Raises:
    OSError: The port is in use.
    base.MissingExtraError: The extra `page` is not installed.
  """
  uvicorn = extras.load("uvicorn", extra="page", what="A page")
  app = _make_app(_Latest(read), token=token, act=act)
  listener = socket.socket()
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  try:
    listener.bind((_HOST, port))
    listener.listen()  # A browser may be faster than the thread.
  except OSError as error:
    listener.close()
    raise OSError(error.errno, f"port {port}: {error.strerror}.") from error
  # Of pure Python: a thread in uvloop may crash the process as it exits.
  plain = dict(loop="asyncio", http=_make_protocol(), lifespan="off")
  plain["log_config"] = None
  logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # Not strangers.
  server = uvicorn.Server(uvicorn.Config(app, **plain))
  done = threads.call_beside(server.run, [listener], name="page")

  def stop() -> None:
    # Connections that are cut are no news now.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server.should_exit = server.force_exit = True
    futures.wait([done], _STOP_SECS)

  atexit.register(stop)
  return f"http://{_HOST}:{listener.getsockname()[1]}/#token={token}"


def _make_protocol() -> type:
  """Returns the protocol of a connection; idle ones use up no files."""
  h11 = extras.load("uvicorn.protocols.http.h11_impl", extra="page", what="A page")
  opened: dict[Any, None] = {}  # The oldest first.

  class Protocol(h11.H11Protocol):  # type: ignore[misc,name-defined]

    def connection_made(self, transport: Any) -> None:
      super().connection_made(transport)
      opened[self] = None
      if len(opened) > _MAX_CONNECTIONS:
        idle = (p for p in opened if not p.cycle or p.cycle.response_complete)
        one = next(idle)  # This one, if all others are being answered.
        del opened[one]
        one.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
      opened.pop(self, None)
      super().connection_lost(exc)

  return Protocol


class _Latest:
  """The newest value, read at most every tenth of a second for all browsers."""

  def __init__(self, read: Read) -> None:
    self._read = read
    self._at_secs = -_PAUSE_SECS
    self._reading = asyncio.Lock()
    self._value: dict[str, Any] = {}

  async def get(self) -> dict[str, Any]:
    """Returns the value; the last one if nothing can be read."""
    async with self._reading:
      if time.monotonic() >= self._at_secs + _PAUSE_SECS:
        try:
          self._value = await asyncio.wrap_future(threads.call_beside(self._read, name="page"))
        except (OSError, ValueError) as error:  # The store may be away.
          head = {**self._value.get("head", {}), "state": f"not known: {error}"}
          self._value = {**self._value, "head": head}
        self._at_secs = time.monotonic()
      return self._value


async def stream(get: Callable[[], Any], pause_secs: float = _PAUSE_SECS) -> AsyncIterator[str]:
  """Yields the changed entries of a value as events, endlessly."""
  sent: dict[str, Any] = {}
  sent_secs: dict[str, float] = {}
  while True:
    value, now = await get(), time.monotonic()
    changed = {
        name: entry
        for name, entry in value.items()
        if (name not in sent or sent[name] != entry)
        and now >= sent_secs.get(name, 0.0) + _PAUSES.get(name, 0.0)
    }
    if changed:
      sent |= changed
      sent_secs |= dict.fromkeys(changed, now)
      yield f"data: {json.dumps(changed, separators=(',', ':'))}\n\n"
    await asyncio.sleep(pause_secs)


def _make_app(latest: _Latest, *, token: str, act: Act | None) -> Any:
  applications = extras.load("starlette.applications", extra="page", what="A page")
  responses = extras.load("starlette.responses", extra="page", what="A page")
  routing = extras.load("starlette.routing", extra="page", what="A page")
  text = responses.PlainTextResponse

  def guarded(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def check(request: Any) -> Any:
      given = request.headers.get("x-token") or request.query_params.get("token", "")
      if not hmac.compare_digest(given.encode(), token.encode()):
        return text("Wrong token: open the address that the run printed.", 403)
      return await answer(request)

    return check

  async def page(request: Any) -> Any:
    return responses.HTMLResponse(document.render())

  async def value(request: Any) -> Any:
    return responses.JSONResponse(await latest.get())

  async def events(request: Any) -> Any:
    return responses.StreamingResponse(
        stream(latest.get), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )

  async def carry_out(request: Any) -> Any:
    if act is None:
      return text("This page shows a run of other machines: no buttons.", 404)
    try:
      asked = await request.json()
      kind, node = str(asked["kind"]), str(asked["node"])
      await asyncio.wrap_future(threads.call_beside(act, kind, node, name="page"))
    except (ValueError, KeyError, TypeError) as error:
      return text(f"{error}", 400)
    return text("")

  return applications.Starlette(
      routes=[
          routing.Route("/", page),
          routing.Route("/value", guarded(value)),
          routing.Route("/events", guarded(events)),
          routing.Route("/act", guarded(carry_out), methods=["POST"]),
      ]
  )
