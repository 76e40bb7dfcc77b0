"""Buckets on this machine: S3 by moto, GCS by a fake, and servers in front that fail on purpose.

     client                 Front                        bucket
       |--- 1 request ------->|   503, closed: it gets no further
       |                      |--- 2 takes effect ------->|   slow; held: when released
       |                      |<-- 3 answer --------------|
       |<-- 4 answer ---------|   lost, held: closed instead; 503_after: so it says

Clients find the server by variables of their environment, as they find a cloud.
"""

import collections
from collections.abc import Iterator, Mapping
import contextlib
import functools
import http.client
import http.server
import logging
import re
import threading
import time
from typing import NamedTuple
import urllib.parse
import xml.sax.saxutils

_CONDITIONS = ("if-none-match", "if-match", "x-goog-if-generation-match")
PAGE = 100  # Names of the fake that one answer has.
# Of a request: never gets there; takes effect late; or its answer is lost.
_FAULTS = {"", "503", "closed", "slow", "held", "lost", "503_after"}
_GONE = {"server", "date", "connection", "transfer-encoding", "content-length"}


class Request(NamedTuple):
  """A request of HTTP; names of headers are in lower case."""

  method: str
  path: str
  headers: Mapping[str, str]
  body: bytes = b""


class Answer(NamedTuple):
  """An answer of HTTP."""

  status: int
  headers: Mapping[str, str] = {}
  body: bytes = b""


class FakeGcs:
  """As much of the XML API of Google Cloud Storage as records need, with generations."""

  def __init__(self, bucket: str) -> None:
    self._bucket = bucket
    self._lock = threading.Lock()
    self._objects: dict[str, tuple[int, bytes]] = {}  # Generation and content.
    self._num_writes = 0

  def answer(self, request: Request) -> Answer:
    """Returns the answer to a request, one after another."""
    path, _, query = request.path.partition("?")
    bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
    if bucket != self._bucket:
      return Answer(404, {}, b"<Error><Code>NoSuchBucket</Code></Error>")
    with self._lock:
      if not key:
        return self._list(dict(urllib.parse.parse_qsl(query)))
      generation, content = self._objects.get(key, (0, b""))
      wanted = request.headers.get("x-goog-if-generation-match", f"{generation}")
      if wanted != f"{generation}":
        return Answer(412)
      match request.method:
        case "PUT":
          self._num_writes += 1
          generation, content = self._objects[key] = self._num_writes, request.body
          content = b""
        case "DELETE" if generation:
          del self._objects[key]
          return Answer(204)
        case "GET" if generation:
          if found := re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", "")):
            piece = content[int(found[1]) : int(found[2]) + 1]
            part = {"content-range": f"bytes {found[1]}-{found[2]}/{len(content)}"}
            return Answer(206, {**_tags(generation), **part}, piece)
        case _:
          return Answer(404)
    return Answer(200, _tags(generation), content)

  def _list(self, query: Mapping[str, str]) -> Answer:
    """Returns a page of names; small, so that there are several."""
    names = sorted(n for n in self._objects if n.startswith(query.get("prefix", "")))
    names = [n for n in names if n > query.get("continuation-token", "")]
    page, rest = names[:PAGE], names[PAGE:]
    entries = "".join(
        f"<Contents><Key>{xml.sax.saxutils.escape(name)}</Key><Size>{len(content)}</Size>"
        f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{generation}</ETag></Contents>"
        for name in page
        for generation, content in [self._objects[name]]
    )
    more = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if rest else ""
    return Answer(200, {}, f"<ListBucketResult>{entries}{more}</ListBucketResult>".encode())


def _tags(generation: int) -> dict[str, str]:
  date = "Thu, 01 Jan 2026 00:00:00 GMT"
  return {"etag": f'"{generation}"', "x-goog-generation": f"{generation}", "last-modified": date}


class Forward:
  """Answers of a server at an address."""

  def __init__(self, host: str, port: int) -> None:
    self._address = host, port

  def answer(self, request: Request) -> Answer:
    """Asks the server."""
    connection = http.client.HTTPConnection(*self._address, timeout=30)
    try:
      connection.request(request.method, request.path, request.body, dict(request.headers))
      answer = connection.getresponse()
      headers = {k.lower(): v for k, v in answer.getheaders()}
      return Answer(answer.status, headers, answer.read())
    finally:
      connection.close()


class Front:
  """A server in front of a bucket, which fails on purpose.

  Attributes:
    bucket: Its name.
    ignores_conditions: Whether writes are done whatever their condition.
    refusal: Status and code of the answer to all writes; None: they are done.
    counts: Requests so far, by method.
  """

  def __init__(self, bucket: str, server: FakeGcs | Forward) -> None:
    self.bucket, self._origin = bucket, server
    self.ignores_conditions = False
    self.refusal: tuple[int, str] | None = None
    self.counts: collections.Counter[str] = collections.Counter()
    self._faults: dict[str, collections.deque[str]] = collections.defaultdict(collections.deque)
    self._always = ""  # Of writes.
    self._lock = threading.Lock()
    self._idle = threading.Condition()
    self._num_held, self._released = 0, threading.Event()
    front = self

    class Handler(http.server.BaseHTTPRequestHandler):
      protocol_version = "HTTP/1.1"
      disable_nagle_algorithm = True  # Headers and body are two packets.

      def log_message(self, *_):
        pass

      def _serve(self):
        front._serve(self)

      do_GET = do_PUT = do_DELETE = do_POST = _serve

    self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self._server.daemon_threads = True
    threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

  @property
  def address(self) -> str:
    """Its URL."""
    return f"http://127.0.0.1:{self._server.server_port}"

  def fail(self, *faults: str, method: str = "PUT") -> None:
    """Has the next requests of a method fail, one by one; see `_FAULTS`."""
    assert _FAULTS.issuperset(faults), faults
    with self._lock:
      self._faults[method].extend(faults)

  @contextlib.contextmanager
  def failing(self, fault: str) -> Iterator[None]:
    """Has all writes fail in a block."""
    self._always = fault
    yield
    self._always = ""

  def release(self) -> None:
    """Lets those that were held take effect; later ones are not held."""
    self._released.set()
    with self._idle:
      self._idle.wait_for(lambda: not self._num_held)

  def fail_no_more(self) -> None:
    """Has the requests to come succeed."""
    with self._lock:
      self._faults.clear()

  def close(self) -> None:
    """Ends the server."""
    self.release()
    self._server.shutdown()
    self._server.server_close()

  def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
    body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
    headers = {k.lower(): v for k, v in handler.headers.items()}
    request = Request(handler.command, handler.path, headers, body)
    with self._lock:
      self.counts[request.method] += 1
      faults = self._faults[request.method]
      fault = faults.popleft() if faults else self._always * (request.method != "GET")
    answer = self._answer(request, fault)
    if answer is None:
      handler.close_connection = True
      return
    handler.send_response(answer.status)
    for name, value in answer.headers.items():
      if name not in _GONE:
        handler.send_header(name, value)
    handler.send_header("content-length", f"{len(answer.body)}")
    handler.end_headers()
    handler.wfile.write(answer.body)

  def _answer(self, request: Request, fault: str) -> Answer | None:
    """Returns the answer, None if the connection is to be closed without one."""
    if self.refusal and request.method != "GET":
      status, code = self.refusal
      return Answer(status, {}, f"<?xml?>\n<Error><Code>{code}</Code></Error>".encode())
    if self.ignores_conditions:
      others = {k: v for k, v in request.headers.items() if k not in _CONDITIONS}
      request = request._replace(headers=others)
    match fault:
      case "503":
        return Answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
      case "closed":
        return None
      case "slow":
        time.sleep(0.1)  # Nothing depends on how long.
      case "held":
        with self._idle:
          self._num_held += 1
        self._released.wait()
    answer = self._origin.answer(request)
    if fault == "held":
      with self._idle:
        self._num_held -= 1
        self._idle.notify_all()
    return {"lost": None, "held": None, "503_after": Answer(503)}.get(fault, answer)


def open_gcs(bucket: str) -> tuple[Front, dict[str, str]]:
  """Returns a bucket at `gs://BUCKET`, and the environment of those who use it."""
  front = Front(bucket, FakeGcs(bucket))
  environ = {"GOOGLE_BASE_URL": front.address, "GOOGLE_BEARER_TOKEN": "token"}
  return front, environ


def open_s3(bucket: str) -> tuple[Front, dict[str, str]]:
  """Returns a bucket at `s3://BUCKET` as `open_gcs` does; one moto serves all."""
  moto = _start_moto()
  made = moto.answer(Request("PUT", f"/{bucket}", {}))
  assert made.status == 200, made
  front = Front(bucket, moto)
  environ = {
      "AWS_ENDPOINT_URL": front.address,
      "AWS_ACCESS_KEY_ID": "key",
      "AWS_SECRET_ACCESS_KEY": "secret",
      "AWS_REGION": "us-east-1",
  }
  return front, environ


@functools.cache
def _start_moto() -> Forward:
  from moto import server  # It takes two seconds.

  logging.getLogger("werkzeug").setLevel(logging.ERROR)
  started = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
  started.start()
  return Forward(*started.get_host_and_port())


OPEN = {"gs": open_gcs, "s3": open_s3}  # By the scheme of URLs.
