"""The page's server, asked over its real socket; no browser."""

import itertools
import json
import socket
import urllib.error
import urllib.request

from absl.testing import absltest

from bamboo_jax.report.live import server, words
from tests import strangers

_TOKEN = server.make_token("a secret")


class ServerTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.value, self.acted = {"head": {"step": 1}}, []
    self.address = server.start(self.read, token=_TOKEN, act=self.act)
    self.port = int(self.address.partition("/#")[0].rpartition(":")[2])

  def read(self):
    if isinstance(self.value, Exception):
      raise self.value
    return dict(self.value)

  def act(self, kind, node):
    if node == "n9":
      raise ValueError("There is no node 'n9'.")
    self.acted.append((kind, node))

  def ask(self, path, token=_TOKEN, content=None):
    """Returns status and text of an answer."""
    request = urllib.request.Request(
        self.address.partition("#")[0] + path,
        headers={"X-Token": token},
        data=None if content is None else json.dumps(content).encode(),
    )
    try:
      with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
      return error.code, error.read().decode()

  def test_the_page_needs_nothing_from_elsewhere(self):
    status, page = self.ask("", token="")
    self.assertEqual(status, 200)
    self.assertIn("<h2>Nodes</h2>", page)
    for outside in ("http:", "https:", "src=", "@import", "url("):
      self.assertNotIn(outside, page)

  def test_value_and_buttons_need_the_token(self):
    kill = {"kind": "kill", "node": "n1"}
    self.assertEqual(self.ask("value"), (200, '{"head":{"step":1}}'))
    self.assertEqual(self.ask("act", content=kill)[0], 200)
    for path, content in (("value", None), ("events", None), ("act", kill)):
      for token in ("", "wrong", _TOKEN.upper()):
        status, text = self.ask(path, token, content)
        self.assertEqual(status, 403)
        self.assertStartsWith(text, "Wrong token")
    self.assertEqual(self.acted, [("kill", "n1")])

  def test_a_button_that_cannot_be(self):
    bad = [{"kind": "kill", "node": "n9"}, {"kind": "kill"}, []]
    self.assertEqual([self.ask("act", content=c)[0] for c in bad], [400] * 3)
    self.address = server.start(self.read, token=_TOKEN)  # Without buttons.
    status, _ = self.ask("act", content={"kind": "kill", "node": "n1"})
    self.assertEqual((status, self.acted), (404, []))

  def test_idle_connections(self):
    """They use up no files, and lock nobody out."""
    idle = strangers.hold(self.port, 150)
    for connection in idle:
      self.addCleanup(connection.close)
    self.assertEqual(self.ask("value")[0], 200)
    for connection in idle[:80]:
      connection.settimeout(20)
      self.assertEqual(connection.recv(1), b"")

  def test_strangers_fill_no_log(self):
    long = b"POST /act HTTP/1.0\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"
    with self.assertNoLogs(level="WARNING"):
      for said, status in ((b"no request\r\n\r\n", b"400"), (long, b"403")):
        with socket.create_connection(("127.0.0.1", self.port), 20) as stranger:
          stranger.sendall(said)
          self.assertStartsWith(stranger.recv(100), b"HTTP/1.0 " + status)

  def test_a_port_in_use(self):
    with socket.socket() as other:
      other.bind(("127.0.0.1", 0))
      other.listen()
      port = other.getsockname()[1]
      with self.assertRaisesRegex(OSError, f"port {port}: Address already"):
        server.start(self.read, token=_TOKEN, port=port)

  def test_the_last_value_stays_when_the_store_is_away(self):
    self.ask("value")
    self.value = OSError("the folder does not answer")
    seen = ""
    while "does not answer" not in seen:  # It reads ten times a second.
      _, seen = self.ask("value")
    self.assertEqual(json.loads(seen)["head"]["step"], 1)

  def test_a_browser_that_goes_away(self):
    for _ in range(3):
      with socket.create_connection(("127.0.0.1", self.port), timeout=20) as one:
        one.sendall(f"GET /events?token={_TOKEN} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        self.assertIn(b"200 OK", one.recv(1 << 16))
    self.assertEqual(self.ask("value")[0], 200)

  def test_events_have_what_has_changed(self):
    values = [{"a": 1, "b": [1]}, {"a": 1, "b": [2]}, {"a": 1, "b": [2], "c": 0}]

    get = lambda: values.pop(0) if len(values) > 1 else values[0]
    events = itertools.islice(server.stream(get, pause_secs=0.0), 3)
    said = [json.loads(event.removeprefix("data: ")) for event in events]
    self.assertEqual(said, [{"a": 1, "b": [1]}, {"b": [2]}, {"c": 0}])

  def test_a_page_with_a_value_in_it(self):
    page = words.render_page({"x": "</script><b>"})
    content = page.partition('id="value">')[2].partition("</script>")[0]
    self.assertEqual(json.loads(content), {"x": "</script><b>"})
