"""What metadata servers say, and what is taken for a notice."""

import socket

from absl.testing import parameterized

from bamboo_jax.base import threads
from bamboo_jax.cluster import notices as notices_lib
from tests import notice_server

_AT = "2030-01-02T03:04:05Z"


class NoticesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.server = notice_server.NoticeServer()
    self.addCleanup(self.server.close)

  def look(self, cloud):
    return notices_lib.Poller(cloud, url=self.server.url).look()

  @parameterized.parameters(
      ("aws", "spot", f"AWS: terminate at {_AT}"),
      ("gcp", "gcp", "Google Cloud: preempted"),
      ("azure", "azure", "Azure: preempted, not before Mon, 19 Sep 2030 18:29:47 GMT"),
  )
  def test_each_cloud_hears_its_own_notice(self, cloud, announced, words):
    self.server.announced = {"spot", "rebalance", "gcp", "azure"} - {
        announced
    }  # Not a notice: "rebalance".
    self.assertIsNone(self.look(cloud))
    self.server.announced = {announced}
    self.assertEqual(self.look(cloud), words)

  def test_azure_announces_the_end_of_another_machine(self):
    self.server.announced = {"azure"}
    self.server.name = "vm_1"
    self.assertIsNone(self.look("azure"))

  @parameterized.product(
      cloud=["aws", "gcp", "azure"], answer=[(200, ""), (200, "no JSON"), (200, "[]"), (500, "")]
  )
  def test_strange_answers(self, cloud, answer):
    problem = "expected, got" if answer[0] == 200 else "status 500"
    with self.assertRaisesRegex(OSError, problem):
      notices_lib.CLOUDS[cloud].look(lambda *_: notices_lib.HttpResponse(*answer))

  @parameterized.parameters(
      '{"Events": null}',
      '{"Events": 3}',
      '{"Events": [{"EventType": "Preempt", "Resources": null}]}',
  )
  def test_events_of_nobody(self, answer):
    look = notices_lib.CLOUDS["azure"].look
    self.assertIsNone(look(lambda *_: (200, answer)))

  @parameterized.parameters("aws", "gcp", "azure")
  def test_an_answer_is_cut_short(self, cloud):
    for status in (200, 404):
      with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(server=server, status=status):
          connection, _ = server.accept()
          with connection:
            connection.recv(1 << 16)
            head = f"HTTP/1.1 {status} So\r\nContent-Length: 9\r\n\r\n"
            connection.sendall(head.encode() + b"{")

        threads.call_beside(answer, name="cloud")
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with self.assertRaisesRegex(OSError, "cannot be polled .*IncompleteRead"):
          notices_lib.Poller(cloud, url=url).look()

  @parameterized.parameters("aws", "gcp", "azure")
  def test_nobody_there(self, cloud):
    self.server.close()
    with self.assertRaisesRegex(OSError, "cannot be polled for preemptions"):
      self.look(cloud)

  def test_misspelt(self):
    with self.assertRaisesRegex(ValueError, "azure"):
      notices_lib.Poller("azur")
