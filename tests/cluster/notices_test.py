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

  @parameterized.product(cloud=["aws", "gcp", "azure"], answer=["", "no JSON", "[]"])
  def test_strange_answers(self, cloud, answer):
    with self.assertRaisesRegex(OSError, "expected, got"):
      notices_lib.CLOUDS[cloud].look(lambda *_: answer)

  @parameterized.parameters(
      '{"Events": null}',
      '{"Events": 3}',
      '{"Events": [{"EventType": "Preempt", "Resources": null}]}',
  )
  def test_events_of_nobody(self, answer):
    look = notices_lib.CLOUDS["azure"].look
    self.assertIsNone(look(lambda *_: answer))

  @parameterized.parameters("aws", "gcp", "azure")
  def test_an_answer_is_cut_short_or_an_error(self, cloud):
    for status, problem in ((200, "IncompleteRead"), (500, "status 500")):
      with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(server=server, status=status):
          connection, _ = server.accept()
          with connection:
            connection.recv(1 << 16)
            head = f"HTTP/1.1 {status} So\r\nContent-Length: 9\r\n\r\n"
            connection.sendall(head.encode() + b"{")

        threads.call_beside(answer, name="cloud")
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with self.assertRaisesRegex(OSError, f"cannot be polled .*{problem}"):
          notices_lib.Poller(cloud, url=url).look()

  @parameterized.parameters("aws", "gcp", "azure")
  def test_nobody_there(self, cloud):
    self.server.close()
    with self.assertRaisesRegex(OSError, "cannot be polled for preemptions"):
      self.look(cloud)

  def test_misspelt(self):
    with self.assertRaisesRegex(ValueError, "azure"):
      notices_lib.Poller("azur")
