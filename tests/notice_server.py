"""A metadata server on the loopback interface that speaks for all clouds."""

import http.server
import json
import threading
from typing import Any
import urllib.parse

_TOKEN = "token"


class NoticeServer:
  """Answers as AWS, Google Cloud and Azure do; nothing is announced at first.

  Attributes:
    url: Where it answers.
    announced: What is announced: of "spot", "rebalance", "gcp", "azure".
    name: Name of the machine on Azure.
  """

  def __init__(self):
    self.announced = set()
    self.name = "vm_0"
    owner = self

    class Handler(http.server.BaseHTTPRequestHandler):
      """One request."""

      def do_GET(self):
        status, body = owner.answer(self.command, self.path, self.headers)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

      do_PUT = do_GET

      def log_message(self, *unused_args):
        pass

    self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
    threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

  def close(self):
    self._server.shutdown()
    self._server.server_close()

  def answer(self, method, path, headers) -> tuple[int, str]:
    path, _, query = path.partition("?")
    given = urllib.parse.parse_qs(query)
    match path.split("/")[1]:
      case _ if method == "PUT":
        ttl = headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        return (200, _TOKEN) if path == "/latest/api/token" and ttl else (400, "")
      case "latest":
        if headers.get("X-aws-ec2-metadata-token") != _TOKEN:
          return 401, ""
        return self._aws(path)
      case "computeMetadata":
        if headers.get("Metadata-Flavor") != "Google":
          return 403, ""
        if path != "/computeMetadata/v1/instance/preempted":
          return 404, ""
        return 200, "TRUE" if "gcp" in self.announced else "FALSE"
      case "metadata":
        if headers.get("Metadata") != "true" or "api-version" not in given:
          return 400, ""
        return self._azure(path)
    return 404, ""

  def _aws(self, path) -> tuple[int, str]:
    answers: dict[str, Any] = {}
    if "spot" in self.announced:
      answers["spot/instance-action"] = {"action": "terminate", "time": "2030-01-02T03:04:05Z"}
    if "rebalance" in self.announced:
      answers["events/recommendations/rebalance"] = {"noticeTime": "2030-01-02T03:04:05Z"}
    found = answers.get(path.removeprefix("/latest/meta-data/"))
    return (200, json.dumps(found)) if found else (404, "")

  def _azure(self, path) -> tuple[int, str]:
    if path == "/metadata/instance/compute/name":
      return 200, self.name
    if path != "/metadata/scheduledevents":
      return 404, ""
    event = {
        "EventId": "f020ba2e",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["vm_0"],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 19 Sep 2030 18:29:47 GMT",
    }
    events = [event] if "azure" in self.announced else []
    others = [event | {"EventType": "Reboot"}]
    return 200, json.dumps({"DocumentIncarnation": 1, "Events": others + events})
