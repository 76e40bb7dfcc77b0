"""The client of etcd, and a real etcd."""

import base64
from concurrent import futures
import http.server
import tempfile

from absl.testing import absltest, parameterized

from bamboo_jax.base import threads
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.net import identity as identity_lib
from tests.explorer import store as fake_store
from tests.launch import commands


class ClientTest(parameterized.TestCase):
  """With a server in memory."""

  def setUp(self):
    super().setUp()
    self.server = fake_store.Server(lambda: 0.0)
    self.asked, self.broken = [], {}
    self.etcd = etcd_lib.Etcd("a:1,b:2", transport=self.carry)

  def carry(self, host, port, path, request, timeout_secs):
    del port, timeout_secs
    self.asked.append(host)
    if host in self.broken:
      raise self.broken[host]
    return 200, self.server.answer(path, request)

  def test_the_next_endpoint_is_asked_if_one_refuses(self):
    self.broken["a"] = etcd_lib.NoEtcdError("refused")
    self.etcd.put("/a", "1")
    self.assertEqual(self.etcd.get("/a"), "1")
    self.assertEqual(self.asked, ["a", "b", "b"])
    self.broken["b"] = etcd_lib.NoEtcdError("refused")
    self.etcd.forget()
    for etcd, was_there in (
        (self.etcd, True),  # It is started again, say: worth another try.
        (etcd_lib.Etcd("a:1,b:2", transport=self.carry), False),
    ):
      with self.assertRaisesRegex(OSError, "refused") as raised:
        etcd.get("/a")
      is_wrong = isinstance(raised.exception, etcd_lib.NoEtcdError)
      self.assertEqual(is_wrong, not was_there)

  def test_what_was_not_answered_may_have_been_done(self):
    self.broken["a"] = TimeoutError("silent")
    with self.assertRaisesRegex(OSError, "silent"):
      self.etcd.create("/a", "1")
    self.assertEqual(self.asked, ["a"])
    self.assertTrue(self.etcd.create("/a", "1"))

  def test_a_store_that_went_back(self):
    self.etcd.put("/a", "1")
    restore = self.server.save()
    self.etcd.put("/a", "2")
    restore()
    with self.assertRaisesRegex(etcd_lib.LostStoreError, "a:1,b:2 has lost.* revision 3 to 2"):
      self.etcd.get("/a")
    self.etcd.forget()
    self.assertEqual(self.etcd.get("/a"), "1")

  def test_another_cluster(self):
    self.etcd.get("/a")
    answer = self.server.answer
    other = {"cluster_id": "2", "revision": "9"}
    self.server.answer = lambda *given: {**answer(*given), "header": other}
    with self.assertRaisesRegex(etcd_lib.LostStoreError, "cluster 2, and was"):
      self.etcd.get("/a")

  def test_an_answer_that_was_overtaken_is_no_loss(self):
    self.etcd.put("/a", "1")
    answer = self.server.answer("kv/range", {"key": ""})
    ask = self.server.answer
    for _ in range(3):
      self.etcd.put("/a", "2")

    def late(path, request):
      self.server.answer = ask
      self.etcd.put("/a", "3")
      return {**answer, "header": {"cluster_id": "1", "revision": "5"}}

    self.server.answer = late
    self.etcd.get("/a")

  @parameterized.parameters(None, "other")
  def test_a_guard(self, there):
    if there:
      self.etcd.put("/id", there)
    create = lambda: self.etcd.create("/a", "1", guard=("/id", "mine"))
    with self.assertRaisesRegex(etcd_lib.LostStoreError, "no /id with mine"):
      create()
    self.assertIsNone(self.etcd.get("/a"))
    self.etcd.put("/id", "mine")
    self.assertTrue(create())
    self.assertFalse(create())

  def test_an_entry_of_a_stranger(self):
    stranger = etcd_lib.Etcd("a:1", key=b"guess", transport=self.carry)
    stranger.put("/a", "1")
    self.etcd.put("/b", "1")
    with self.assertRaisesRegex(
        etcd_lib.ForgedError, "^/a at etcd a:1,b:2 was not written with the se"
    ):
      self.etcd.get_all("/")
    self.assertEqual(self.etcd.get_keys("/"), ["/a", "/b"])
    self.assertEqual(self.etcd.get("/b"), "1")
    entries = self.server._entries
    codes = sorted(entries)
    entries[codes[0]] = {**entries[codes[1]], "key": codes[0]}
    with self.assertRaises(etcd_lib.ForgedError):  # Moved to another key.
      self.etcd.get("/a")
    no_text = {"value": base64.b64encode(b"\xff").decode()}
    entries[codes[0]] = {**entries[codes[0]], **no_text}
    with self.assertRaises(etcd_lib.ForgedError):
      self.etcd.get_all("/")

  @parameterized.product(
      status=[200, 503], body=[b"{}", b"[]", b"null", b"404 page not found", b"\xff"]
  )
  def test_a_proxy_answers(self, status, body):
    class Handler(http.server.BaseHTTPRequestHandler):

      def do_POST(self):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

      def log_message(self, *unused_args):
        pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self.addCleanup(server.server_close)
    threads.call_beside(server.serve_forever, 0.01, name="proxy")
    self.addCleanup(server.shutdown)
    etcd = etcd_lib.Etcd(f"127.0.0.1:{server.server_address[1]}")
    self.addCleanup(etcd.close)
    problem = "it is not etcd, and answers|refuses .*{}"
    for call in (
        lambda: etcd.get("/a"),
        lambda: etcd.look([("/a", "")]),
        lambda: etcd.create("/a", ""),
        lambda: etcd.grant_lease(5),
        lambda: etcd.keep_lease(5),
        etcd.version,
    ):
      with self.assertRaisesRegex(OSError, problem):
        call()

  @parameterized.parameters(("3.5.0", True), ("3.5.2", True), ("3.5.3", False), ("3.4.23", False))
  def test_releases(self, version, is_faulty):
    self.assertEqual(bool(etcd_lib.find_fault(version)), is_faulty)


@commands.needs_etcd
class EtcdTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.server = commands.start_etcd(folder, self.addCleanup, secret=b"s")
    self.etcd = self.server.client

  def test_strangers_are_refused(self):
    place = self.etcd.endpoints.removeprefix("https://")
    own = identity_lib.issue(b"guess", run="run", role="agent", name="n0")
    advice = f"requires certificates: write https://{place}, and give --secret"
    for endpoints, tls, problem in (
        (place, None, advice),
        (f"http://{place}", own.store, advice),
        (self.etcd.endpoints, own.store, f"of etcd at {place} is not of the sa"),
    ):
      etcd = etcd_lib.Etcd(endpoints, tls=tls)
      with self.assertRaisesRegex(etcd_lib.NoEtcdError, problem):
        etcd.get("/a")
    with self.assertRaisesRegex(ValueError, "A secret or certificates"):
      etcd_lib.Etcd(self.etcd.endpoints)

  def test_it_takes_no_tls(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    plain = commands.start_etcd(folder, self.addCleanup)
    own = identity_lib.issue(b"s", run="run", role="agent", name="n0")
    etcd = etcd_lib.Etcd(f"https://{plain.endpoint}", tls=own.store)
    advice = f"does not use TLS: write http://{plain.endpoint}."
    with self.assertRaisesRegex(etcd_lib.NoEtcdError, advice):
      etcd.get("/a")
    etcd = etcd_lib.Etcd(f"http://{plain.endpoint}/", key=b"")
    self.assertIsNone(etcd.get("/a"))
    etcd.close()

  def test_it_is_what_the_simulated_one_is(self):
    fake = fake_store.Server(lambda: 0.0).client()
    for etcd in (self.etcd, fake):
      etcd.create("/id", "x")
      with self.assertRaises(etcd_lib.LostStoreError):
        etcd.create("/a", "1", guard=("/id", "y"))
      self.assertTrue(etcd.create("/a", "1", guard=("/id", "x")))
      self.assertFalse(etcd.create("/a", "1", guard=("/id", "x")))
    self.assertEqual(self.etcd.get_all("/"), fake.get_all("/"))
    self.assertRegex(self.etcd.version(), r"^3\.")

  def test_values(self):
    self.assertIsNone(self.etcd.get("/a/1"))
    for key, value in (("/a/1", ""), ("/a/2", "ä {}"), ("/b", "x")):
      self.etcd.put(key, value)
    found = self.etcd.get_all("/a/")
    self.assertEqual(found, {"/a/1": "", "/a/2": "ä {}"})
    self.assertEqual(self.etcd.get("/b"), "x")

  def test_ranges(self):
    for key in ("/a/1", "/a/2", "/a/3", "/b"):
      self.etcd.put(key, key)
    found = self.etcd.get_all("/a/", after="1")
    self.assertEqual(list(found), ["/a/2", "/a/3"])
    self.assertEqual(self.etcd.get_last("/a/"), "/a/3")
    self.assertIsNone(self.etcd.get_last("/c/"))

  def test_a_look_is_what_the_simulated_one_is(self):
    fake = fake_store.Server(lambda: 0.0).client()
    looks = []
    for etcd in (self.etcd, fake):
      for key in ("/a/1", "/a/2", "/b/1"):
        etcd.put(key, key)
      revision, found = etcd.look(
          [("/a/", "1"), ("/b", ""), ("/c", ""), ("/a/", None), ("/c", None)]
      )
      self.assertEqual(revision, etcd.revision)
      looks.append([list(entries) for entries in found])
    self.assertEqual(looks, [[["/a/2"], ["/b/1"], [], ["/a/2"], []]] * 2)

  def test_a_change_is_waited_for(self):
    self.etcd.put("/a/1", "1")
    before = self.etcd.revision
    self.etcd.put("/a/2", "2")
    self.etcd.wait("/a/", after=before, secs=30.0)  # That one.
    lease = self.etcd.grant_lease(60)
    self.etcd.put("/a/3", "", lease=lease)
    with futures.ThreadPoolExecutor() as pool:
      for end in (
          lambda: self.etcd.put("/a/1", "3"),
          lambda: self.etcd.revoke_lease(lease),
          self.etcd.stop_waiting,
      ):
        self.etcd.get("/a/1")  # Answers about leases do not say how new.
        after = self.etcd.revision
        waits = pool.submit(self.etcd.wait, "/a/", after=after, secs=60.0)
        while not self.etcd._waiting:
          self.assertFalse(waits.done())
        self.etcd.put("/b", "1")
        self.assertFalse(waits.done())
        end()
        waits.result(timeout=30.0)
    self.etcd.wait("/a/", after=self.etcd.revision, secs=0.01)

  def test_whoever_creates_first_wins(self):
    self.assertTrue(self.etcd.create("/a", "1"))
    self.assertFalse(self.etcd.create("/a", "2"))
    self.assertEqual(self.etcd.get("/a"), "1")

  def test_leases(self):
    lease = self.etcd.grant_lease(60)
    self.etcd.put("/a", "1", lease=lease)
    self.assertTrue(self.etcd.keep_lease(lease))
    self.etcd.revoke_lease(lease)
    self.assertIsNone(self.etcd.get("/a"))
    self.assertFalse(self.etcd.keep_lease(lease))
